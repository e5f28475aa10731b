from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser
from django.db import transaction

from tenants import actors, webhooks
from tenants.management.command import JsonCommand, add_subject, find_tenant, subject


class Command(JsonCommand):
    help = "Remove a webhook with its log and what waits for it."
    example = "manage.py remove_webhook acme --webhook 01890000-0000-7000-8000-000000000000"

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        add_subject(parser, "tenant", "the tenant's short name")
        parser.add_argument("--webhook", required=True, metavar="ID")

    def run(self, options: dict[str, Any]) -> dict[str, Any]:
        with transaction.atomic():
            webhook = webhooks.find(find_tenant(subject(options, "tenant")), options["webhook"])
            removed = {"removed": str(webhook.pk), "url": webhook.url}
            webhooks.remove(actors.of_command(), webhook)
        return removed

    def describe(self, result: dict[str, Any]) -> str:
        return f"Webhook {result['removed']} ({result['url']}) is removed."
