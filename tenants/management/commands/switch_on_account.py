from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from tenants import accounts
from tenants.actors import of_command
from tenants.management.command import JsonCommand, add_subject, subject


class Command(JsonCommand):
    help = "Let a person whose account was switched off sign in again. Revoked keys stay so."
    example = "manage.py switch_on_account ada@example.org"

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        add_subject(parser, "username", "the account's user name")

    def run(self, options: dict[str, Any]) -> dict[str, Any]:
        user = accounts.find_account(subject(options, "username"))
        accounts.switch_on(of_command(), user)
        return {"username": user.username, "active": True}

    def describe(self, result: dict[str, Any]) -> str:
        return f"{result['username']} may sign in again."
