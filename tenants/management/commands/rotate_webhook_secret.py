from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db import transaction

from tenants import actors, webhooks
from tenants.management.command import JsonCommand, add_subject, find_tenant, subject


class Command(JsonCommand):
    help = "Replace a webhook's secret; for a while both sign. The new one is shown once."
    example = "manage.py rotate_webhook_secret acme --webhook 01890000-0000-7000-8000-000000000000 --overlap-hours 48"

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        add_subject(parser, "tenant", "the tenant's short name")
        parser.add_argument("--webhook", required=True, metavar="ID")
        parser.add_argument(
            "--overlap-hours", type=int, default=24, help="how long the former signs as well (default: %(default)s)"
        )

    def run(self, options: dict[str, Any]) -> dict[str, Any]:
        most = webhooks.MOST_OVERLAP // timedelta(hours=1)
        if not 0 <= options["overlap_hours"] <= most:
            raise CommandError(f"--overlap-hours has to be between 0 and {most}.")
        with transaction.atomic():
            webhook = webhooks.find(find_tenant(subject(options, "tenant")), options["webhook"])
            secret = webhooks.rotate_secret(actors.of_command(), webhook, timedelta(hours=options["overlap_hours"]))
        until = webhook.previous_until
        return {"id": str(webhook.pk), "secret": secret.reveal(), "previous_until": until and until.isoformat()}

    def describe(self, result: dict[str, Any]) -> str:
        until = result["previous_until"]
        former = f"the former one signs too until {until}" if until else "the former one is gone"
        return f"{result['secret']}\nThe secret of webhook {result['id']}, shown only now; {former}."
