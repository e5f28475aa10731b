from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser

from tenants.management import bounds
from tenants.management.command import JsonCommand, find_plan
from tenants.models import Limits, Tenant


class Command(JsonCommand):
    help = (
        "Set the limits of a tenant, a key or a member, or (none) take them back. They hold from the next request on."
    )
    example = "manage.py set_limits acme --key 5kQz81LmNb0c --tokens-per-day 200000 --models acme/pirate"

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        bounds.add_bound(parser)
        bounds.add_limits(parser)
        parser.add_argument("--plan", help="move the tenant to this plan, whose limits hold where it has none")
        parser.add_argument("--models", help="models that the key or member may use, separated by commas; or: all")

    def run(self, options: dict[str, Any]) -> dict[str, Any]:
        bound = bounds.bound(options)
        row = bound.row
        changes: dict[str, Any] = bounds.given_limits(options)
        fields = list(changes)
        for name, value in changes.items():
            setattr(row, name, value)
        if options["plan"]:
            if not isinstance(row, Tenant):
                raise CommandError("--plan is for whole tenants.")
            row.plan = find_plan(options["plan"])
            fields.append("plan")
        if options["models"] is not None:
            if isinstance(row, Tenant):
                raise CommandError("--models is for keys and members; for tenants there is allow_model.")
            fields += bounds.restrict(row, bound.tenant, options["models"])
        if not fields:
            raise CommandError(f"Say at least one of {bounds.flags(Limits.NAMES)}, --plan, --models.")
        bounds.check_budgets(row, fields)
        row.save(update_fields=fields)
        own = row.own_limits()
        limits = row.effective_limits() if isinstance(row, Tenant) else own
        return {
            "tenant": bound.tenant.slug,
            "subject": bound.subject,
            "name": bound.name,
            "plan": bound.tenant.plan.name,
            "limits": limits,
            "own": own,
            "only_models": None if isinstance(row, Tenant) else bounds.restriction(row),
        }

    def describe(self, result: dict[str, Any]) -> str:
        elsewhere = "plan" if result["subject"] == "tenant" else "the tenant's hold"
        head = f"{result['name']}, on plan {result['plan']}:"
        lines = [head, *bounds.describe_limits(result["limits"], result["own"], elsewhere)]
        if result["only_models"] is not None:
            lines.append(f"  only these models: {', '.join(result['only_models']) or 'none'}")
        return "\n".join(lines)
