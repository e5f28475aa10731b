from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from tenants import membership
from tenants.actors import of_command
from tenants.management.command import JsonCommand, add_subject, find_member, find_tenant, subject


class Command(JsonCommand):
    help = "Remove a member and revoke its keys; their running streams stop within seconds. The account itself stays."
    example = "manage.py remove_member acme --member ada@example.org"

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        add_subject(parser, "tenant", "the tenant's short name")
        parser.add_argument("--member", required=True, metavar="USERNAME")

    def run(self, options: dict[str, Any]) -> dict[str, Any]:
        tenant = find_tenant(subject(options, "tenant"))
        member = find_member(tenant, options["member"])
        name = member.user.get_username()
        return {
            "tenant": tenant.slug,
            "username": name,
            "keys_revoked": membership.remove(of_command(), member),
        }

    def describe(self, result: dict[str, Any]) -> str:
        return (
            f"{result['username']} is no member of {result['tenant']} any more; keys revoked: {result['keys_revoked']}."
        )
