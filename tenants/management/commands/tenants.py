from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser
from django.db.models import Q

from tenants.management.command import JsonCommand
from tenants.models import Tenant


class Command(JsonCommand):
    help = "List tenants: state, plan and weight."
    example = "manage.py tenants --state suspended"

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--state", choices=Tenant.State.values, help="only these")
        parser.add_argument("--search", help="part of the short name or of the name for people")

    def run(self, options: dict[str, Any]) -> dict[str, Any]:
        rows = Tenant.objects.select_related("plan").order_by("slug")
        if options["state"]:
            rows = rows.filter(state=options["state"])
        if options["search"]:
            rows = rows.filter(Q(slug__icontains=options["search"]) | Q(display_name__icontains=options["search"]))
        found = [
            {
                "tenant": tenant.slug,
                "display_name": tenant.display_name,
                "state": tenant.state,
                "plan": tenant.plan.name,
                "weight": tenant.weight,
                "created_at": tenant.created_at.isoformat(),
            }
            for tenant in rows
        ]
        return {"tenants": found}

    def describe(self, result: dict[str, Any]) -> str:
        lines = [
            f"{row['tenant']:<24} {row['state']:<10} {row['plan']:<16} {row['weight']:>6}  {row['display_name']}"
            for row in result["tenants"]
        ]
        return "\n".join([f"{'tenant':<24} {'state':<10} {'plan':<16} {'weight':>6}  name", *lines])
