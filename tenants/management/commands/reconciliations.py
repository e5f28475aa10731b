from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser

from tenants.management.command import JsonCommand
from tenants.models import ReconciliationRun


class Command(JsonCommand):
    help = (
        "What was found by the last looks at whether everything adds up: those of the clock and those that "
        "operators asked for."
    )
    example = "manage.py reconciliations --last 5"

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--last", type=int, default=10, help="so many (default: %(default)s)")

    def run(self, options: dict[str, Any]) -> dict[str, Any]:
        if not 1 <= options["last"] <= 1000:
            raise CommandError("--last has to be between 1 and 1000.")
        found = [
            {
                "id": str(run.pk),
                "state": run.state,
                "tenant": run.tenant or None,
                "asked_by": run.asked_by,
                "asked_at": run.asked_at.isoformat(),
                "ok": run.ok,
                "findings": run.result.get("findings", []),
            }
            for run in ReconciliationRun.objects.order_by("-id")[: options["last"]]
        ]
        return {"reconciliations": found}

    def describe(self, result: dict[str, Any]) -> str:
        words = {True: "everything adds up", False: "the books do not add up", None: "not known"}
        lines = [
            f"{row['asked_at']} {row['tenant'] or 'all'}, {row['asked_by']}: {row['state']}, {words[row['ok']]}"
            for row in result["reconciliations"]
        ]
        return "\n".join(lines) or "Nobody has looked yet (reconcile)."
