from __future__ import annotations

from argparse import SUPPRESS
from typing import Any

from django.core.management.base import CommandError, CommandParser

from tenants.management.command import JsonCommand, add_subject, find_plan, find_tenant, limit_value, subject
from tenants.models import Limits, Tenant


class Command(JsonCommand):
    help = "Set a tenant's own limits, or (none) go back to its plan's. They hold from the next request on."
    example = "manage.py set_limits acme --requests-per-minute 120 --max-output-tokens none"

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        add_subject(parser, "tenant", "the tenant's short name")
        for name in Limits.NAMES:
            text = f"{Tenant._meta.get_field(name).help_text}; none: the plan's"  # type: ignore[union-attr]
            flag = f"--{name.replace('_', '-')}"
            parser.add_argument(flag, type=limit_value, default=SUPPRESS, metavar="N", help=text)
        parser.add_argument("--plan", help="move the tenant to this plan")

    def run(self, options: dict[str, Any]) -> dict[str, Any]:
        tenant = find_tenant(subject(options, "tenant"))
        changes = {name: options[name] for name in Limits.NAMES if name in options}
        if options["plan"]:
            changes["plan"] = find_plan(options["plan"])
        if not changes:
            flags = ", ".join(f"--{name.replace('_', '-')}" for name in (*Limits.NAMES, "plan"))
            raise CommandError(f"Say at least one of {flags}.")
        for name, value in changes.items():
            setattr(tenant, name, value)
        tenant.save(update_fields=list(changes))
        own = {name: getattr(tenant, name) for name in Limits.NAMES}
        return {"tenant": tenant.slug, "plan": tenant.plan.name, "limits": tenant.effective_limits(), "own": own}

    def describe(self, result: dict[str, Any]) -> str:
        lines = [f"{result['tenant']} on plan {result['plan']}:"]
        for name, value in result["limits"].items():
            source = "own" if result["own"][name] is not None else "plan"
            lines.append(f"  {name:<20} {'unlimited' if value is None else value} ({source})")
        return "\n".join(lines)
