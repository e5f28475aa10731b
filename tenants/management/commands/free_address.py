from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from tenants import invitations, proofs
from tenants.actors import of_command
from tenants.management.command import JsonCommand, add_subject, subject


class Command(JsonCommand):
    help = (
        "Take an e-mail address from the account that has it, because it is somebody else's. The account keeps its "
        "password and memberships, is signed out, and gets another name where the address was its name."
    )
    example = "manage.py free_address ada@example.org"

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        add_subject(parser, "email", "the address")

    def run(self, options: dict[str, Any]) -> dict[str, Any]:
        email = invitations.address(subject(options, "email"))
        freed = proofs.free(of_command(), email)
        return {"email": email, "usernames": [user.username for user in freed]}

    def describe(self, result: dict[str, Any]) -> str:
        return f"{result['email']} is free; it was taken from: {', '.join(result['usernames'])}."
