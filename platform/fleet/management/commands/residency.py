from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from fleet.residency import reconcile, residency
from tenants.management.command import JsonCommand


class Command(JsonCommand):
    help = (
        "Which adapters lie on which workers, and which should and do not. With --reconcile, load what is missing and "
        "unload what nobody may use any more first; Celery does that every ten seconds."
    )
    example = "manage.py residency --reconcile"

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--reconcile", action="store_true", help="make it so first")

    def run(self, options: dict[str, Any]) -> dict[str, Any]:
        done = reconcile() if options["reconcile"] else []
        return {"reconciled": done, "workers": residency()}

    def problem(self, result: dict[str, Any]) -> str | None:
        if result["reconciled"] is None:
            return "Another round is under way; try again."
        problems = [f"{row['worker']}: {text}" for row in result["reconciled"] for text in row["problems"]]
        return "; ".join(problems) or None

    def describe(self, result: dict[str, Any]) -> str:
        lines = []
        for row in result["workers"]:
            state = row["problem"] or f"{len(row['resident'])} of {row['slots']} slots"
            lines.append(f"{row['worker']} ({row['base_model']}): {state}")
            for mark, kind in (("+", "resident"), ("-", "missing"), ("!", "left_out")):
                for one in row[kind]:
                    lines.append(f"  {mark} {', '.join(one['adapters']) or one['digest'][:16]} ({one['why']})")
        return "\n".join(lines) or "No worker is active."
