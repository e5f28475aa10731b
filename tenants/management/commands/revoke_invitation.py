from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from tenants import invitations
from tenants.actors import of_command
from tenants.errors import NotFound
from tenants.management.command import JsonCommand, add_subject, find_tenant, subject
from tenants.models import Invitation


class Command(JsonCommand):
    help = "Take an open invitation back: its link opens nothing any more."
    example = "manage.py revoke_invitation acme --email ada@example.org"

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        add_subject(parser, "tenant", "the tenant's short name")
        parser.add_argument("--email", required=True, help="who was invited")

    def run(self, options: dict[str, Any]) -> dict[str, Any]:
        tenant = find_tenant(subject(options, "tenant"))
        email = invitations.address(options["email"])
        found = Invitation.objects.filter(tenant=tenant, email=email, accepted_at=None, revoked_at=None).first()
        if found is None:
            raise NotFound("open invitation", email)
        invitations.revoke_invitation(of_command(), found)
        return {"tenant": tenant.slug, "email": email, "state": found.state}

    def describe(self, result: dict[str, Any]) -> str:
        return f"The invitation of {result['email']} to {result['tenant']} is revoked."
