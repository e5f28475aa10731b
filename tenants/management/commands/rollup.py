from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from django.core.management.base import CommandError, CommandParser

from tenants import rollups
from tenants.management.command import JsonCommand


class Command(JsonCommand):
    help = "Bring usage by hour up to date with the ledger, as Celery does every minute; or make it again."
    example = "manage.py rollup --since 2030-01-01"

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        again = parser.add_mutually_exclusive_group()
        again.add_argument("--since", metavar="DATE", help="make every hour from this day (UTC) on again")
        again.add_argument("--all", action="store_true", help="make everything again")

    def run(self, options: dict[str, Any]) -> dict[str, Any]:
        if options["all"]:
            return {"rebuilt": True, "since": None, "rows": rollups.rebuild()}
        if options["since"]:
            try:
                since = datetime.fromisoformat(options["since"]).replace(tzinfo=UTC)
            except ValueError:
                raise CommandError("--since has to be a date such as 2030-01-01.") from None
            return {"rebuilt": True, "since": since.isoformat(), "rows": rollups.rebuild(since)}
        return {"rebuilt": False, "hours": rollups.catch_up()}

    def describe(self, result: dict[str, Any]) -> str:
        if not result["rebuilt"]:
            return f"{result['hours']} hours brought up to date."
        return f"{result['rows']} rows made again, since {result['since'] or 'the first entry'}."
