from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from tenants import audit, operators
from tenants.actors import of_command
from tenants.links import password_link
from tenants.management.command import JsonCommand, add_subject, subject


class Command(JsonCommand):
    help = (
        "A link for somebody who forgot the password: it sets a new one, once. Void after three days and once its "
        "owner signs in. Pass it on only to the account's owner."
    )
    example = "manage.py password_link ada@example.org"

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        add_subject(parser, "username", "whose password")

    def run(self, options: dict[str, Any]) -> dict[str, Any]:
        user = operators.find_user(subject(options, "username"))
        link = password_link(user)
        audit.record(of_command(), "account.password_link_made", user.username, tenant=None)
        return {"username": user.username, "link": link.reveal()}

    def describe(self, result: dict[str, Any]) -> str:
        return f"{result['link']}\nSets the password of {result['username']}. Shown only now."
