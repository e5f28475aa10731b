from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from tenants import adapters, allowlists
from tenants.actors import of_command
from tenants.management.command import JsonCommand, add_subject, find_tenant, subject


class Command(JsonCommand):
    help = "Let a tenant use another tenant's adapter, under its owner's name for it; --remove takes that back."
    example = "manage.py allow_adapter globex --adapter acme/pirate"

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        add_subject(parser, "tenant", "who may use it")
        parser.add_argument("--adapter", required=True, metavar="OWNER/NAME", help="the adapter")
        parser.add_argument("--remove", action="store_true", help="take the allowance back")

    def run(self, options: dict[str, Any]) -> dict[str, Any]:
        tenant = find_tenant(subject(options, "tenant"))
        adapter = adapters.named(options["adapter"], "adapter")
        if options["remove"]:
            allowlists.forbid_adapter(of_command(), tenant, adapter)
        else:
            allowlists.allow_adapter(of_command(), tenant, adapter)
        base = adapter.base_model
        return {
            "tenant": tenant.slug,
            "adapter": str(adapter),
            "allowed": not options["remove"],
            "base_model": base.name,
            "base_model_allowed": tenant.model_allowances.filter(base_model=base).exists(),
        }

    def describe(self, result: dict[str, Any]) -> str:
        text = f"{result['tenant']} may {'' if result['allowed'] else 'no longer '}use {result['adapter']}."
        if result["allowed"] and not result["base_model_allowed"]:
            text += f" It also needs its base model: allow_model {result['tenant']}"
            text += f" --model {result['base_model']}."
        return text
