from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from tenants import adapter_shares, adapters
from tenants.management.adapter_name import adapter_name, add_adapter_name
from tenants.management.command import JsonCommand


class Command(JsonCommand):
    help = "Show an adapter: its versions with their reports, and who else may use it."
    example = "manage.py adapter acme/pirate"

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        add_adapter_name(parser)

    def run(self, options: dict[str, Any]) -> dict[str, Any]:
        tenant, name = adapter_name(options)
        found = adapters.find(tenant, name)
        shares = adapter_shares.shares(found).order_by("tenant__slug")
        return {
            "adapter": str(found),
            "base_model": found.base_model.name,
            "version": found.current.number if found.current else None,
            "versions": [
                {
                    "version": version.number,
                    "state": version.state,
                    "digest": version.digest,
                    "bytes": version.stored_bytes,
                    "report": version.report,
                }
                for version in found.versions.order_by("number")
            ],
            "shared_with": list(shares.values_list("tenant__slug", flat=True)),
        }

    def describe(self, result: dict[str, Any]) -> str:
        lines = [f"{result['adapter']} of {result['base_model']}"]
        for version in result["versions"]:
            mark = "*" if version["version"] == result["version"] else " "
            lines.append(f"{mark} v{version['version']}  {version['state']}  {version['bytes']} bytes")
            for problem in version["report"].get("problems", ()):
                lines.append(f"    {problem['message']}" + (f" ({problem['advice']})" if problem["advice"] else ""))
        if result["shared_with"]:
            lines.append(f"shared with {', '.join(result['shared_with'])}")
        return "\n".join(lines)
