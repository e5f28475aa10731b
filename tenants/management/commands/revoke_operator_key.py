from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from tenants import operator_keys
from tenants.actors import of_command
from tenants.management.command import JsonCommand, add_subject, subject


class Command(JsonCommand):
    help = "Revoke an operator's key: it is refused from the next request on."
    example = "manage.py revoke_operator_key dashboard"

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        add_subject(parser, "key", "the key's name or public id")

    def run(self, options: dict[str, Any]) -> dict[str, Any]:
        key = operator_keys.find(subject(options, "key"))
        operator_keys.revoke(of_command(), key)
        assert key.revoked_at is not None
        return {"name": key.name, "public_id": key.public_id, "revoked_at": key.revoked_at.isoformat()}

    def describe(self, result: dict[str, Any]) -> str:
        return f"Operator key {result['name']} is revoked since {result['revoked_at']}."
