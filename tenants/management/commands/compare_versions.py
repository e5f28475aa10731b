from __future__ import annotations

from dataclasses import asdict
from typing import Any

from django.core.management.base import CommandParser

from tenants import adapters, version_differences
from tenants.counted import counted
from tenants.management.adapter_name import adapter_name, add_adapter_name
from tenants.management.command import JsonCommand


class Command(JsonCommand):
    help = "What changed from one version of an adapter to another: its figures, its PEFT config, its modules."
    example = "manage.py compare_versions acme/pirate --from 1 --to 2"

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        add_adapter_name(parser)
        parser.add_argument("--from", required=True, type=int, metavar="N", help="the version's number")
        parser.add_argument("--to", required=True, type=int, metavar="N", help="the other's")

    def run(self, options: dict[str, Any]) -> dict[str, Any]:
        tenant, name = adapter_name(options)
        older, newer = (adapters.find_version(tenant, name, options[which]) for which in ("from", "to"))
        found = version_differences.compare(older, newer)
        return {"adapter": f"{tenant}/{name}", "before": older.number, "after": newer.number, **asdict(found)}

    def describe(self, result: dict[str, Any]) -> str:
        lines = [f"{result['adapter']}, from v{result['before']} to v{result['after']}"]
        lines += [_change(row["name"], row) for row in result["figures"]]
        if result["config"] is None:
            lines.append("  config: not there of both")
        lines += [_change(f"config: {row['name']}", row) for row in result["config"] or ()]
        lines += [_change(row["module"], row) for row in result["modules"]]
        lines.append(f"  {counted(result['same_modules'], 'module')} adapted alike")
        return "\n".join(lines)


def _change(name: str, row: dict[str, Any]) -> str:
    before, after = ("–" if row[side] is None else row[side] for side in ("before", "after"))
    return f"  {name}: {before} → {after}"
