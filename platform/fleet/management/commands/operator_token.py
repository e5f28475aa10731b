from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

from django.core.management.base import CommandError, CommandParser

from tenants import audit
from tenants.actors import of_command
from tenants.grants import operator_token
from tenants.management.command import JsonCommand

LONGEST_MINUTES = 366 * 24 * 60


class Command(JsonCommand):
    help = (
        "Print a token for operating workers: their metrics with the names of tenants and adapters, public prefixes, "
        "loading adapters. It cannot be taken back: until it ends, only another grant key makes it worthless. Each is "
        "an entry in the audit log."
    )
    example = "manage.py operator_token --minutes 10"

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--minutes", type=int, default=60, help="how long it is good (default: %(default)s)")

    def run(self, options: dict[str, Any]) -> dict[str, Any]:
        minutes = options["minutes"]
        if not 1 <= minutes <= LONGEST_MINUTES:
            raise CommandError(f"--minutes has to be between 1 and {LONGEST_MINUTES}.")
        expires = datetime.fromtimestamp(int(time.time()) + minutes * 60, UTC)
        token = operator_token(lifetime=minutes * 60)
        audit.record(of_command(), "operator_token.issued", "workers", tenant=None, after={"expires_at": expires})
        return {"token": token, "expires_at": expires.isoformat()}

    def describe(self, result: dict[str, Any]) -> str:
        """The token alone, for ``$(…)`` and files that a scraper reads."""
        return str(result["token"])
