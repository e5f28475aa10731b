from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.utils import timezone

from tenants.management.command import JsonCommand, add_subject, find_tenant, subject
from tenants.models import ApiKey


class Command(JsonCommand):
    help = "Issue an API key for a tenant. The key is shown once and cannot be read again."
    example = "manage.py issue_key acme --name laptop --expires-in-days 90"

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        add_subject(parser, "tenant", "the tenant's short name")
        parser.add_argument("--name", default="", help="what the key is for")
        parser.add_argument("--expires-in-days", type=int, metavar="DAYS", help="default: never")

    def run(self, options: dict[str, Any]) -> dict[str, Any]:
        tenant = find_tenant(subject(options, "tenant"))
        days = options["expires_in_days"]
        if days is not None and not 1 <= days <= 36500:
            raise CommandError("--expires-in-days has to be between 1 and 36500.")
        expires_at = None if days is None else timezone.now() + timedelta(days=days)
        key, secret = ApiKey.issue(tenant, name=options["name"], expires_at=expires_at)
        return {
            "tenant": tenant.slug,
            "public_id": key.public_id,
            "name": key.name,
            "api_key": secret.reveal(),
            "expires_at": expires_at and expires_at.isoformat(),
        }

    def describe(self, result: dict[str, Any]) -> str:
        until = f"until {result['expires_at']}" if result["expires_at"] else "until it is revoked"
        return f"{result['api_key']}\nKey {result['public_id']} of {result['tenant']}, good {until}. Shown only now."
