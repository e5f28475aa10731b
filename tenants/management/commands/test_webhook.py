from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser
from django.db import transaction

from tenants import actors, webhooks
from tenants.management.command import JsonCommand, add_subject, find_tenant, subject


class Command(JsonCommand):
    help = "Send a webhook the event webhook.test; Celery delivers it within seconds."
    example = "manage.py test_webhook acme --webhook 01890000-0000-7000-8000-000000000000"

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        add_subject(parser, "tenant", "the tenant's short name")
        parser.add_argument("--webhook", required=True, metavar="ID")

    def run(self, options: dict[str, Any]) -> dict[str, Any]:
        with transaction.atomic():
            webhook = webhooks.find(find_tenant(subject(options, "tenant")), options["webhook"])
            delivery = webhooks.test(actors.of_command(), webhook)
        return {"webhook": str(webhook.pk), "delivery": str(delivery.pk), "event": str(delivery.event_id)}

    def describe(self, result: dict[str, Any]) -> str:
        return f"Delivery {result['delivery']} waits for its turn; `webhooks --webhook` shows what comes of it."
