from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db import transaction

from tenants import adapter_quotas, key_ring, provisioning
from tenants.actors import of_command
from tenants.callers import caller_of_command
from tenants.errors import Invalid
from tenants.management import bounds
from tenants.management.command import JsonCommand, find_plan
from tenants.models import Limits, Tenant
from tenants.restrictions import names_of, restrict


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
        changes = bounds.given_limits(options)
        if not changes and not options["plan"] and options["models"] is None:
            raise CommandError(f"Say at least one of {bounds.flags(Limits.NAMES)}, --plan, --models.")
        with transaction.atomic():
            if isinstance(row, Tenant):
                if options["models"] is not None:
                    raise CommandError("--models is for keys and members; for tenants there is allow_model.")
                plan = find_plan(options["plan"]) if options["plan"] else None
                provisioning.change(of_command(), row, plan=plan, limits=changes)
            else:
                if options["plan"]:
                    raise CommandError("--plan is for whole tenants.")
                if changes:
                    bounds.change(bound, changes)
                if options["models"] is not None:
                    _restrict(bound, options["models"])
        own = row.own_limits()
        limits = row.effective_limits() if isinstance(row, Tenant) else own
        return {
            "tenant": bound.tenant.slug,
            "subject": bound.subject,
            "name": bound.name,
            "plan": bound.tenant.plan.name,
            "limits": limits,
            "own": own,
            "adapter_quotas": adapter_quotas.limits(row) if isinstance(row, Tenant) else None,
            "only_models": None if isinstance(row, Tenant) else names_of(row),
        }

    def describe(self, result: dict[str, Any]) -> str:
        elsewhere = "plan" if result["subject"] == "tenant" else "the tenant's hold"
        head = f"{result['name']}, on plan {result['plan']}:"
        lines = [head, *bounds.describe_limits(result["limits"], result["own"], elsewhere)]
        for name, value in (result["adapter_quotas"] or {}).items():
            lines.append(f"  {name:<20} {'unlimited' if value is None else value} (show_limits: how much is used)")
        if result["only_models"] is not None:
            lines.append(f"  only these models: {', '.join(result['only_models']) or 'none'}")
        return "\n".join(lines)


def _restrict(bound: bounds.Bound, text: str) -> None:
    names = None if text == "all" else [part.strip() for part in text.split(",") if part.strip()]
    if names is not None and not names:
        raise CommandError("--models names no model; say all to lift the restriction.")
    try:
        if bound.key is not None:
            key_ring.change(caller_of_command(bound.tenant), bound.key, models=names)
        elif bound.member is not None:
            restrict(of_command(), bound.member, names)
    except Invalid as error:
        raise CommandError(f"{error} To lift the restriction say --models all.") from None
