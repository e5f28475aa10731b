from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from tenants import key_ring
from tenants.callers import caller_of_command
from tenants.management import ring
from tenants.management.command import JsonCommand, add_subject, subject


class Command(JsonCommand):
    help = "Revoke an API key: new requests are refused at once, running ones are stopped within seconds."
    example = "manage.py revoke_key 5kQz81LmNb0c"

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        add_subject(parser, "key", "the key's public id (between the underscores), or the whole key")

    def run(self, options: dict[str, Any]) -> dict[str, Any]:
        key = ring.find_any_key(subject(options, "key"))
        key_ring.revoke(caller_of_command(key.tenant), key)
        return ring.described_again(key)

    def describe(self, result: dict[str, Any]) -> str:
        return f"Key {result['public_id']} of {result['tenant']} is revoked since {result['revoked_at']}."
