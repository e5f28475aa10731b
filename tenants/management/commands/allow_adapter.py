from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from tenants.errors import NotConfigured
from tenants.management.command import JsonCommand, find_tenant
from tenants.models import Adapter, AdapterAllowance


class Command(JsonCommand):
    help = "Let a tenant use another tenant's adapter, under its owner's name for it; --remove takes that back."
    example = "manage.py allow_adapter --tenant globex --adapter acme/pirate"

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--tenant", required=True, help="who may use it")
        parser.add_argument("--adapter", required=True, metavar="OWNER/NAME", help="the adapter")
        parser.add_argument("--remove", action="store_true", help="take the allowance back")

    def run(self, options: dict[str, Any]) -> dict[str, Any]:
        tenant = find_tenant(options["tenant"])
        owner, _, name = options["adapter"].partition("/")
        adapter = Adapter.objects.filter(tenant__slug=owner, name=name).first()
        if adapter is None:
            raise NotConfigured(f"There is no adapter {options['adapter']!r}; write it as owner/name.")
        if adapter.tenant_id == tenant.pk:
            raise NotConfigured(f"{adapter} is {tenant}'s own; it needs no allowance.")
        if options["remove"]:
            AdapterAllowance.objects.filter(tenant=tenant, adapter=adapter).delete()
        else:
            AdapterAllowance.objects.get_or_create(tenant=tenant, adapter=adapter)
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
            text += f" It also needs its base model: allow_model --tenant {result['tenant']}"
            text += f" --model {result['base_model']}."
        return text
