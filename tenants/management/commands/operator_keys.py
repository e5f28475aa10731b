from __future__ import annotations

from typing import Any

from tenants.management.command import JsonCommand
from tenants.models import OperatorKey


class Command(JsonCommand):
    help = "Operators' keys, by name: until when they are good and when they were last used."
    example = "manage.py operator_keys"

    def run(self, options: dict[str, Any]) -> dict[str, Any]:
        fields = ("created_at", "expires_at", "revoked_at", "last_used_at")
        return {
            "keys": [
                {"name": key.name, "public_id": key.public_id}
                | {name: (moment := getattr(key, name)) and moment.isoformat() for name in fields}
                for key in OperatorKey.objects.order_by("name")
            ]
        }

    def describe(self, result: dict[str, Any]) -> str:
        lines = []
        for key in result["keys"]:
            state = f"revoked {key['revoked_at']}" if key["revoked_at"] else f"expires {key['expires_at'] or 'never'}"
            lines.append(f"{key['public_id']}  {key['name']:<24} {state}  last used {key['last_used_at'] or 'never'}")
        return "\n".join(lines) or "There are no operator keys."
