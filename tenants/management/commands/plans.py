from __future__ import annotations

from typing import Any

from django.db.models import Count

from tenants.counted import counted
from tenants.limits import names_for
from tenants.management.command import JsonCommand
from tenants.models import Plan


class Command(JsonCommand):
    help = "List plans: their limits and how many tenants are on each."
    example = "manage.py plans"

    def run(self, options: dict[str, Any]) -> dict[str, Any]:
        rows = Plan.objects.annotate(count=Count("tenants")).order_by("name")
        found = [
            {
                "plan": plan.name,
                "tenants": plan.count,
                "limits": {name: getattr(plan, name) for name in names_for(Plan)},
            }
            for plan in rows
        ]
        return {"plans": found}

    def describe(self, result: dict[str, Any]) -> str:
        lines = []
        for row in result["plans"]:
            limits = ", ".join(f"{name} {value}" for name, value in row["limits"].items() if value is not None)
            lines.append(f"{row['plan']} ({counted(row['tenants'], 'tenant')}): {limits or 'no limits'}")
        return "\n".join(lines) or "No plans (set_plan)."
