from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from tenants import adapter_quotas
from tenants.management import bounds
from tenants.management.command import JsonCommand
from tenants.models import Tenant
from tenants.restrictions import names_of
from tenants.standing import standing


class Command(JsonCommand):
    help = (
        "What limits are in force for a tenant, a key or a member, how much of each is used and left now, and which "
        "models a key or a member is restricted to."
    )
    example = "manage.py show_limits acme --key 5kQz81LmNb0c"

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        bounds.add_bound(parser)

    def run(self, options: dict[str, Any]) -> dict[str, Any]:
        bound = bounds.bound(options)
        member = bound.member or (bound.key.member if bound.key is not None else None)
        subjects = standing(bound.tenant, member, bound.key)
        return {
            "tenant": bound.tenant.slug,
            "plan": bound.tenant.plan.name,
            "key": bound.key.public_id if bound.key is not None else None,
            "member": str(member.user) if member is not None else None,
            "subjects": subjects,
            "adapter_quotas": _quotas(bound.tenant),
            "restrictions": {
                name: names_of(holder)
                for name, holder in (("member", member), ("key", bound.key))
                if holder is not None
            },
        }

    def describe(self, result: dict[str, Any]) -> str:
        lines = []
        for subject in result["subjects"]:
            kind = subject["subject"].partition(":")[0]
            whose = result["tenant"] if kind == "tenant" else f"{kind} {result[kind]}"
            lines.append(f"{whose:<24} {'limit':>16} {'used':>16} {'left':>16}")
            for name, at in subject["limits"].items():
                lines.append(f"  {name:<22} {at['limit']:>16} {at.get('used', ''):>16} {at.get('left', ''):>16}")
            if not subject["limits"]:
                lines.append("  no limits")
        lines.append(f"{'adapters of ' + result['tenant']:<24} {'limit':>16} {'used':>16} {'left':>16}")
        for name, at in result["adapter_quotas"].items():
            limit, left = ("none", "") if at["limit"] is None else (at["limit"], at["left"])
            lines.append(f"  {name:<22} {limit:>16} {at['used']:>16} {left:>16}")
        for kind, models in result["restrictions"].items():
            only = "all models of the tenant" if models is None else f"only {', '.join(models) or 'no model'}"
            lines.append(f"{kind} {result[kind]} may use {only}.")
        return "\n".join(lines)


def _quotas(tenant: Tenant) -> dict[str, dict[str, int | None]]:
    """What the tenant may keep of adapters, and keeps; ``None``: no limit."""
    limits, use = adapter_quotas.limits(tenant), adapter_quotas.used(tenant)
    have = {"max_adapters": use.adapters, "max_adapter_versions": use.versions, "max_adapter_bytes": use.bytes}
    return {
        name: {"limit": limit, "used": have[name], "left": None if limit is None else max(limit - have[name], 0)}
        for name, limit in limits.items()
    }
