from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.management.base import CommandError, CommandParser

from tenants import identities, operators
from tenants.actors import of_command
from tenants.management.command import JsonCommand, add_subject, subject


class Command(JsonCommand):
    help = "Let an identity of the OpenID Connect provider open an account that exists already."
    example = "manage.py link_identity grace --subject 248289761001"

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        add_subject(parser, "username", "whose account it is")
        parser.add_argument("--subject", required=True, help="what the provider calls the person (the claim sub)")

    def run(self, options: dict[str, Any]) -> dict[str, Any]:
        if settings.OIDC is None:
            raise CommandError("No provider is configured; set LORAPLEX_OIDC_ISSUER.")
        if not 0 < len(options["subject"]) <= 255:
            raise CommandError("--subject has 1 to 255 characters.")
        user = operators.find_user(subject(options, "username"))
        made = identities.link(of_command(), user, settings.OIDC.issuer, options["subject"])
        return {"username": user.username, "issuer": made.issuer, "subject": made.subject}

    def describe(self, result: dict[str, Any]) -> str:
        return f"{result['subject']} at {result['issuer']} opens the account {result['username']}."
