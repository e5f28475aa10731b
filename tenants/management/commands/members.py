from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from tenants.counted import counted
from tenants.management.command import JsonCommand, add_subject, find_tenant, subject
from tenants.models import Invitation, Member
from tenants.restrictions import names_of_all


class Command(JsonCommand):
    help = "Who belongs to a tenant, with which role, and who is invited."
    example = "manage.py members acme"

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        add_subject(parser, "tenant", "the tenant's short name")

    def run(self, options: dict[str, Any]) -> dict[str, Any]:
        tenant = find_tenant(subject(options, "tenant"))
        members: list[Member] = list(
            Member.objects.filter(tenant=tenant).select_related("user").order_by("user__username")
        )
        opened = Invitation.objects.filter(tenant=tenant, accepted_at=None, revoked_at=None).order_by("pk")
        return {
            "tenant": tenant.slug,
            "members": [
                {
                    "id": str(member.public_id),
                    "username": member.user.get_username(),
                    "email": member.user.email,
                    "role": member.role,
                    "active": member.user.is_active,
                    "models": names,
                }
                for member, names in zip(members, names_of_all(members), strict=True)
            ],
            "invitations": [
                {
                    "id": str(row.pk),
                    "email": row.email,
                    "role": row.role,
                    "state": row.state,
                    "expires_at": row.expires_at.isoformat(),
                }
                for row in opened
            ],
        }

    def describe(self, result: dict[str, Any]) -> str:
        lines = [f"{counted(len(result['members']), 'member')} of {result['tenant']}"]
        for member in result["members"]:
            off = "" if member["active"] else " (switched off)"
            lines.append(f"  {member['role']:<10} {member['username']} <{member['email']}>{off}")
        for row in result["invitations"]:
            lines.append(f"  {row['role']:<10} {row['email']}: invited, {row['state']} until {row['expires_at']}")
        return "\n".join(lines)
