from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from tenants import key_ring
from tenants.callers import caller_of_command
from tenants.management import bounds, ring
from tenants.management.command import JsonCommand, add_subject, find_member, find_tenant, subject
from tenants.models import ApiKey


class Command(JsonCommand):
    help = "Issue an API key for a tenant. The key is shown once and cannot be read again."
    example = "manage.py issue_key acme --name laptop --expires-in-days 90 --addresses 203.0.113.0/24"

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        add_subject(parser, "tenant", "the tenant's short name")
        parser.add_argument("--name", default="", help="what the key is for")
        parser.add_argument("--member", metavar="USERNAME", help="whose key it becomes; default: the tenant's own")
        parser.add_argument(
            "--scope", choices=ApiKey.Scope.values, default="inference", help="what it opens; default: inference"
        )
        ring.add_restrictions(parser)
        bounds.add_limits(parser)

    def run(self, options: dict[str, Any]) -> dict[str, Any]:
        tenant = find_tenant(subject(options, "tenant"))
        wanted = key_ring.Wanted(
            name=options["name"],
            scope=options["scope"],
            member=find_member(tenant, options["member"]) if options["member"] else None,
            limits=bounds.given_limits(options),
            **ring.restrictions(options),
        )
        key, secret = key_ring.issue(caller_of_command(tenant), wanted)
        return ring.described_again(key) | {"api_key": secret.reveal()}

    def describe(self, result: dict[str, Any]) -> str:
        until = f"until {result['expires_at']}" if result["expires_at"] else "until it is revoked"
        return f"{result['api_key']}\nKey {result['public_id']} of {result['tenant']}, good {until}. Shown only now."
