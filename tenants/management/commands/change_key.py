from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser

from tenants import key_ring
from tenants.callers import caller_of_command
from tenants.management import bounds, ring
from tenants.management.command import JsonCommand, add_subject, subject


class Command(JsonCommand):
    help = (
        "Change a key's name, end, restrictions or limits. Restrictions and limits are those of its predecessors and "
        "successors too; running requests that they no longer allow end within seconds."
    )
    example = "manage.py change_key 5kQz81LmNb0c --addresses 203.0.113.0/24,2001:db8::/32 --tokens-per-day none"

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        add_subject(parser, "key", "the key's public id (between the underscores), or the whole key")
        parser.add_argument("--name", help="what the key is for")
        ring.add_restrictions(parser)
        bounds.add_limits(parser)

    def run(self, options: dict[str, Any]) -> dict[str, Any]:
        key = ring.find_any_key(subject(options, "key"))
        changes = ring.restrictions(options)
        if options["name"] is not None:
            changes["name"] = options["name"]
        if limits := bounds.given_limits(options):
            changes["limits"] = limits
        if not changes:
            raise CommandError("Say what to change: --name, --models, --addresses, --expires-in-days or a limit.")
        key_ring.change(caller_of_command(key.tenant), key, **changes)
        return ring.described_again(key)

    def describe(self, result: dict[str, Any]) -> str:
        return ring.line(result)
