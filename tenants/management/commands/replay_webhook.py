from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db import transaction
from django.utils import timezone

from tenants import actors, webhooks
from tenants.management.command import JsonCommand, add_subject, find_tenant, subject


class Command(JsonCommand):
    help = "Send a webhook again what was given up lately, or one delivery whatever became of it."
    example = "manage.py replay_webhook acme --webhook 01890000-0000-7000-8000-000000000000 --hours 48"

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        add_subject(parser, "tenant", "the tenant's short name")
        parser.add_argument("--webhook", required=True, metavar="ID")
        what = parser.add_mutually_exclusive_group()
        what.add_argument("--delivery", metavar="ID", help="this one")
        what.add_argument("--hours", type=int, default=24, help="events of so many hours (default: %(default)s)")

    def run(self, options: dict[str, Any]) -> dict[str, Any]:
        if not 1 <= options["hours"] <= 24 * 60:
            raise CommandError("--hours has to be between 1 and 1440.")
        actor = actors.of_command()
        with transaction.atomic():
            webhook = webhooks.find(find_tenant(subject(options, "tenant")), options["webhook"])
            if options["delivery"]:
                webhooks.replay(actor, webhooks.find_delivery(webhook, options["delivery"]))
                count = 1
            else:
                since = timezone.now() - timedelta(hours=options["hours"])
                count = webhooks.replay_failed(actor, webhook, since)
        return {"webhook": str(webhook.pk), "deliveries": count}

    def describe(self, result: dict[str, Any]) -> str:
        return f"{result['deliveries']} deliveries to webhook {result['webhook']} are sent again."
