from __future__ import annotations

import re
from typing import Any

from django.core.management.base import CommandError, CommandParser

from tenants import adapter_quotas
from tenants.actors import of_command
from tenants.management.command import JsonCommand, add_subject, find_plan, find_tenant, subject
from tenants.models import Tenant


class Command(JsonCommand):
    help = "Set how many adapters, versions and bytes a tenant, or each tenant of a plan, may keep."
    example = "manage.py set_adapter_quotas acme --max-adapters 20 --max-adapter-bytes none"

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        add_subject(parser, "tenant", "the tenant's short name")
        parser.add_argument("--plan", help="of this plan instead, for every tenant on it that has none of its own")
        for name in Tenant.ADAPTER_QUOTAS:
            meaning = Tenant._meta.get_field(name).help_text.replace("%", "%%")  # type: ignore[union-attr]
            parser.add_argument(
                f"--{name.replace('_', '-')}", help=f"{meaning}; none: the plan's, and for a plan no limit"
            )

    def run(self, options: dict[str, Any]) -> dict[str, Any]:
        if options["plan"] and (options["tenant"] or options["tenant_by_position"]):
            raise CommandError("Say a tenant or a plan, not both.")
        holder = find_plan(options["plan"]) if options["plan"] else find_tenant(subject(options, "tenant"))
        given = {name: options[name] for name in Tenant.ADAPTER_QUOTAS if options[name] is not None}
        if not given:
            raise CommandError("Say at least one quota.")
        adapter_quotas.change(of_command(), holder, {name: _number(name, text) for name, text in given.items()})
        shown = {name: getattr(holder, name) for name in Tenant.ADAPTER_QUOTAS}
        return {"tenant" if isinstance(holder, Tenant) else "plan": str(holder), "quotas": shown}

    def describe(self, result: dict[str, Any]) -> str:
        return "\n".join(f"{name}: {'-' if value is None else value}" for name, value in result["quotas"].items())


def _number(name: str, text: str) -> int | None:
    if text.lower() == "none":
        return None
    if not re.fullmatch(r"[0-9]{1,18}", text):
        raise CommandError(f"--{name.replace('_', '-')} has to be a whole number, or none.")
    return int(text)
