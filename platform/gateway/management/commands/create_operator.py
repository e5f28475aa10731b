from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from tenants import operators
from tenants.actors import of_command
from tenants.links import password_link
from tenants.management.command import JsonCommand, add_subject, subject


class Command(JsonCommand):
    help = (
        "Create an account of a platform operator: all tenants, the operator API, the admin. Prints a link that sets "
        "its password once, good for three days."
    )
    example = "manage.py create_operator grace --email grace@example.org"

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        add_subject(parser, "username", "the name to sign in with")
        parser.add_argument("--email", required=True, help="the operator's e-mail address")

    def run(self, options: dict[str, Any]) -> dict[str, Any]:
        user = operators.create_operator(of_command(), subject(options, "username"), options["email"])
        return {"username": user.username, "email": user.email, "link": password_link(user).reveal()}

    def describe(self, result: dict[str, Any]) -> str:
        return f"{result['link']}\n{result['username']} is an operator. The link sets the password; shown only now."
