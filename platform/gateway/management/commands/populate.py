from __future__ import annotations

import time
from typing import Any

from django.core.management.base import CommandError, CommandParser

from gateway.population import populate, require_empty
from tenants.actors import of_command
from tenants.management.command import JsonCommand
from tenants.models import LedgerEntry, Member


class Command(JsonCommand):
    help = "Fill a database without tenants with imagined ones, to see how the platform does at a large size."
    example = "manage.py populate --tenants 1000 --adapters 10000 --requests 1000000"

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--tenants", type=int, default=1000, help="how many (default: %(default)s)")
        parser.add_argument("--adapters", type=int, default=10_000, help="of all tenants (default: %(default)s)")
        parser.add_argument("--requests", type=int, default=1_000_000, help="in the ledger (default: %(default)s)")
        parser.add_argument("--days", type=int, default=30, help="over which they are spread (default: %(default)s)")
        parser.add_argument("--yes", action="store_true", help="do not ask")

    def run(self, options: dict[str, Any]) -> dict[str, Any]:
        sizes = {name: options[name] for name in ("tenants", "adapters", "requests", "days")}
        require_empty()
        if not options["yes"]:
            self._ask(sizes)
        began = time.monotonic()
        largest = populate(of_command(), **sizes, say=lambda text: self.stderr.write(text, self.style.HTTP_INFO))
        owner = Member.objects.filter(tenant=largest, role=Member.Role.OWNER).select_related("user").first()
        assert owner is not None
        entries = LedgerEntry.objects.filter(tenant=largest).count()
        taken = {"seconds": round(time.monotonic() - began, 1)}
        return sizes | taken | {"largest": largest.slug, "owner": owner.user.username, "its_requests": entries}

    def describe(self, result: dict[str, Any]) -> str:
        return (
            f"Made {result['tenants']} tenants, {result['adapters']} adapters and {result['requests']} requests "
            f"in {result['seconds']} s. The largest is {result['largest']}, with {result['its_requests']} requests; "
            f"{result['owner']} owns it (password_link makes a link to sign in with)."
        )

    def _ask(self, sizes: dict[str, int]) -> None:
        """Ledger and audit log are append-only: nothing takes this back but dropping the database."""
        try:
            given = input(
                f"Fill this database with {sizes['requests']} imagined requests? They cannot be deleted again. [y/N] "
            )
        except EOFError:
            raise CommandError("Nobody answered: say --yes.") from None
        if given.strip().lower() not in {"y", "yes"}:
            raise CommandError("Nothing was changed.")
