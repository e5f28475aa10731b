from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from tenants import accounts
from tenants.actors import of_command
from tenants.management.command import JsonCommand, add_subject, subject


class Command(JsonCommand):
    help = "Switch a person's account off: nobody signs in with it, and its keys are revoked. A last owner stays."
    example = "manage.py switch_off_account ada@example.org"

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        add_subject(parser, "username", "the account's user name")

    def run(self, options: dict[str, Any]) -> dict[str, Any]:
        user = accounts.find_account(subject(options, "username"))
        return {"username": user.username, "active": False, "keys_revoked": accounts.switch_off(of_command(), user)}

    def describe(self, result: dict[str, Any]) -> str:
        return f"{result['username']} is switched off; keys revoked: {result['keys_revoked']}."
