from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from tenants import membership
from tenants.actors import of_command
from tenants.management.command import JsonCommand, add_subject, find_member, find_tenant, subject
from tenants.models import Member


class Command(JsonCommand):
    help = "Change a member's role. A tenant keeps at least one owner."
    example = "manage.py set_role acme --member ada@example.org --role developer"

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        add_subject(parser, "tenant", "the tenant's short name")
        parser.add_argument("--member", required=True, metavar="USERNAME")
        parser.add_argument("--role", required=True, choices=Member.Role.values)

    def run(self, options: dict[str, Any]) -> dict[str, Any]:
        tenant = find_tenant(subject(options, "tenant"))
        member = find_member(tenant, options["member"])
        membership.change_role(of_command(), member, Member.Role(options["role"]))
        return {"tenant": tenant.slug, "username": member.user.get_username(), "role": str(member.role)}

    def describe(self, result: dict[str, Any]) -> str:
        return f"{result['username']} is {result['role']} of {result['tenant']}."
