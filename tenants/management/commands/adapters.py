from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from tenants import adapter_quotas, adapter_shares
from tenants import adapters as tenants_adapters
from tenants.counted import counted
from tenants.management.command import JsonCommand, add_subject, find_tenant, subject


class Command(JsonCommand):
    help = "List a tenant's adapters, those that others share with it, and what is left of its quotas."
    example = "manage.py adapters acme"

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        add_subject(parser, "tenant", "the tenant's short name")

    def run(self, options: dict[str, Any]) -> dict[str, Any]:
        tenant = find_tenant(subject(options, "tenant"))
        used, limits = adapter_quotas.used(tenant), adapter_quotas.limits(tenant)
        return {
            "tenant": tenant.slug,
            "adapters": [
                {
                    "adapter": str(adapter),
                    "base_model": adapter.base_model.name,
                    "version": adapter.current.number if adapter.current else None,
                }
                for adapter in tenants_adapters.rows(tenant)
            ],
            "shared_with_it": [row.model for row in adapter_shares.received(tenant).order_by("model")],
            "used": {"adapters": used.adapters, "versions": used.versions, "bytes": used.bytes},
            "limits": limits,
        }

    def describe(self, result: dict[str, Any]) -> str:
        lines = [f"{row['adapter']}  {row['base_model']}  {_version(row['version'])}" for row in result["adapters"]]
        lines += [f"{name}  shared by its owner" for name in result["shared_with_it"]]
        used = result["used"]
        lines.append(
            "In use: "
            f"{counted(used['adapters'], 'adapter')}, {counted(used['versions'], 'version')}, {used['bytes']} bytes."
        )
        return "\n".join(lines)


def _version(number: int | None) -> str:
    return "no version ready" if number is None else f"v{number}"
