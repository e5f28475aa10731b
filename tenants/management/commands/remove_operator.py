from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from tenants import operators
from tenants.actors import of_command
from tenants.management.command import JsonCommand, add_subject, subject


class Command(JsonCommand):
    help = "Take an operator's rights away at once. The account stays; the last operator does too."
    example = "manage.py remove_operator grace"

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        add_subject(parser, "username", "the operator's user name")

    def run(self, options: dict[str, Any]) -> dict[str, Any]:
        username = subject(options, "username")
        operators.remove_operator(of_command(), username)
        return {"username": username, "operator": False}

    def describe(self, result: dict[str, Any]) -> str:
        return f"{result['username']} is no operator any more."
