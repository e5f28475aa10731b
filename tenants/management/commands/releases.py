from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from tenants import adapters, releases
from tenants.counted import counted
from tenants.management.adapter_name import adapter_name, add_adapter_name
from tenants.management.command import JsonCommand
from tenants.management.released import shown_release


class Command(JsonCommand):
    help = "What an adapter's name stands for, and what it stood for before, the latest first."
    example = "manage.py releases acme/pirate"

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        add_adapter_name(parser)
        parser.add_argument("--limit", type=int, default=20, help="at most so many (default: %(default)s)")

    def run(self, options: dict[str, Any]) -> dict[str, Any]:
        adapter = adapters.find(*adapter_name(options))
        rows = releases.history(adapter)
        return {
            "adapter": str(adapter),
            "auto_promote": adapter.auto_promote,
            "pinned": adapter.pinned,
            "releases": [shown_release(row) for row in rows[: max(options["limit"], 1)]],
        }

    def describe(self, result: dict[str, Any]) -> str:
        lines = [f"{result['adapter']}: {counted(len(result['releases']), 'release')}"]
        for row in result["releases"]:
            split = f", {row['canary_percent']} % v{row['canary']}" if row["canary"] else ""
            lines.append(f"  {row['release']:>4}  v{row['version']}{split}  {row['kind']} by {row['made_by']}")
        return "\n".join(lines)
