from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.utils import timezone

from tenants import operator_keys
from tenants.actors import of_command
from tenants.management.command import JsonCommand, add_subject, subject


class Command(JsonCommand):
    help = "Issue an operator's key to /api/operator/. The key is shown once and cannot be read again."
    example = "manage.py issue_operator_key dashboard --expires-in-days 365"

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        add_subject(parser, "name", "who or what uses it, as the audit log will say")
        parser.add_argument("--expires-in-days", type=int, metavar="DAYS", help="default: never")

    def run(self, options: dict[str, Any]) -> dict[str, Any]:
        days = options["expires_in_days"]
        if days is not None and not 1 <= days <= 36500:
            raise CommandError("--expires-in-days has to be between 1 and 36500.")
        expires_at = None if days is None else timezone.now() + timedelta(days=days)
        key, secret = operator_keys.issue(of_command(), subject(options, "name"), expires_at=expires_at)
        return {
            "name": key.name,
            "public_id": key.public_id,
            "api_key": secret.reveal(),
            "expires_at": expires_at and expires_at.isoformat(),
        }

    def describe(self, result: dict[str, Any]) -> str:
        until = f"until {result['expires_at']}" if result["expires_at"] else "until it is revoked"
        return f"{result['api_key']}\nOperator key {result['name']}, good {until}. Shown only now."
