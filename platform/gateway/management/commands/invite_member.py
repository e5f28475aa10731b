from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.management.base import CommandParser
from django.db import transaction

from tenants import invitations
from tenants.actors import of_command
from tenants.links import announce, invitation_link
from tenants.management.command import JsonCommand, add_subject, find_tenant, subject
from tenants.models import Member


class Command(JsonCommand):
    help = (
        "Invite somebody into a tenant. The link is shown once and good for seven days; where there is a mail server, "
        "one that also proves the address is mailed."
    )
    example = "manage.py invite_member acme --email ada@example.org --role owner"

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        add_subject(parser, "tenant", "the tenant's short name")
        parser.add_argument("--email", required=True, help="who is invited")
        parser.add_argument("--role", default=Member.Role.VIEWER, choices=Member.Role.values, help="default: viewer")

    def run(self, options: dict[str, Any]) -> dict[str, Any]:
        tenant = find_tenant(subject(options, "tenant"))
        with transaction.atomic():
            row, token = invitations.invite(of_command(), tenant, options["email"], Member.Role(options["role"]))
            announce(row, token)
        return {
            "tenant": tenant.slug,
            "id": str(row.pk),
            "email": row.email,
            "role": str(row.role),
            "link": invitation_link(token).reveal(),
            "expires_at": row.expires_at.isoformat(),
            "mailed": settings.MAIL,
        }

    def describe(self, result: dict[str, Any]) -> str:
        how = (
            "another was mailed, which also proves the address; shown only now"
            if result["mailed"]
            else "pass it on; it is shown only now"
        )
        whose = f"Link for {result['email']} to {result['tenant']}, good until {result['expires_at']}"
        return f"{result['link']}\n{whose}: {how}."
