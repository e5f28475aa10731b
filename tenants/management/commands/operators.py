from __future__ import annotations

from typing import Any

from django.contrib.auth import get_user_model

from tenants.counted import counted
from tenants.management.command import JsonCommand


class Command(JsonCommand):
    help = "The people who run the platform: accounts that may use the operator API and the admin."
    example = "manage.py operators"

    def run(self, options: dict[str, Any]) -> dict[str, Any]:
        staff = get_user_model().objects.filter(is_staff=True).order_by("username")
        return {
            "operators": [
                {
                    "username": user.username,
                    "email": user.email,
                    "active": user.is_active,
                    "last_login": user.last_login and user.last_login.isoformat(),
                }
                for user in staff
            ]
        }

    def describe(self, result: dict[str, Any]) -> str:
        lines = [counted(len(result["operators"]), "operator")]
        for one in result["operators"]:
            seen = f"last seen {one['last_login']}" if one["last_login"] else "never signed in"
            lines.append(f"  {one['username']} <{one['email']}>, {seen}{'' if one['active'] else ', switched off'}")
        return "\n".join(lines)
