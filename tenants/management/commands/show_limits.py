from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from tenants.management import bounds
from tenants.management.command import JsonCommand
from tenants.standing import standing


class Command(JsonCommand):
    help = "What limits are in force for a tenant, a key or a member, and how much of each is used and left now."
    example = "manage.py show_limits acme --key 5kQz81LmNb0c"

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        bounds.add_bound(parser)

    def run(self, options: dict[str, Any]) -> dict[str, Any]:
        bound = bounds.bound(options)
        member = bound.member or (bound.key.member if bound.key is not None else None)
        subjects = standing(bound.tenant, member, bound.key)
        return {"tenant": bound.tenant.slug, "plan": bound.tenant.plan.name, "subjects": subjects}

    def describe(self, result: dict[str, Any]) -> str:
        lines = []
        for subject in result["subjects"]:
            whose = result["tenant"] if subject["subject"] == "tenant" else subject["subject"]
            lines.append(f"{whose:<24} {'limit':>16} {'used':>16} {'left':>16}")
            for name, at in subject["limits"].items():
                lines.append(f"  {name:<22} {at['limit']:>16} {at.get('used', ''):>16} {at.get('left', ''):>16}")
            if not subject["limits"]:
                lines.append("  no limits")
        return "\n".join(lines)
