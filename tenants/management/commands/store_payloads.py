from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser

from tenants import payloads
from tenants.actors import of_command
from tenants.management.command import JsonCommand, add_subject, find_tenant, subject


class Command(JsonCommand):
    help = "Store a tenant's prompts and answers for some days, or no more (which deletes them). Off unless turned on."
    example = "manage.py store_payloads acme --days 7"

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        add_subject(parser, "tenant", "the tenant's short name")
        parser.add_argument("--days", type=int, help=f"keep each for so long, 1 to {payloads.MOST_DAYS}")
        parser.add_argument("--operators-may-read", action="store_true", help="let the platform's operators read them")
        parser.add_argument("--off", action="store_true", help="store nothing any more, and delete what is stored")

    def run(self, options: dict[str, Any]) -> dict[str, Any]:
        if options["off"] == (options["days"] is not None):
            raise CommandError("Say --days or --off.")
        tenant = find_tenant(subject(options, "tenant"))
        if options["off"]:
            return {"tenant": tenant.slug, "days": None, "deleted": payloads.turn_off(of_command(), tenant)}
        allowed = options["operators_may_read"]
        storing = payloads.turn_on(of_command(), tenant, days=options["days"], operators_may_read=allowed)
        return {"tenant": tenant.slug, "days": storing.days, "operators_may_read": storing.operators_may_read}

    def describe(self, result: dict[str, Any]) -> str:
        if result["days"] is None:
            return f"{result['tenant']}: nothing is stored; {result['deleted']} requests' payloads were deleted."
        readers = "operators may read them" if result["operators_may_read"] else "operators may not read them"
        return f"{result['tenant']}: prompts and answers are stored for {result['days']} days; {readers}."
