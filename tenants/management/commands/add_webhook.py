from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser
from django.db import transaction

from tenants import actors, webhooks
from tenants.management.command import JsonCommand, add_subject, find_tenant, subject


class Command(JsonCommand):
    help = "Tell an address of a tenant's of events. The secret that signs the messages is shown once."
    example = "manage.py add_webhook acme --url https://example.org/hook --events adapter.ready,batch.completed"

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        add_subject(parser, "tenant", "the tenant's short name")
        parser.add_argument("--url", required=True, help="a public https:// address")
        known = ", ".join(sorted(webhooks.EVENTS))
        parser.add_argument("--events", default=webhooks.ALL, help=f"of {known}; default: all of them")
        parser.add_argument("--description", default="", help="what it is for")

    def run(self, options: dict[str, Any]) -> dict[str, Any]:
        tenant = find_tenant(subject(options, "tenant"))
        events = [event.strip() for event in options["events"].split(",") if event.strip()]
        with transaction.atomic():
            webhook, secret = webhooks.create(
                actors.of_command(), tenant, url=options["url"], events=events, description=options["description"]
            )
        return {
            "tenant": tenant.slug,
            "id": str(webhook.pk),
            "url": webhook.url,
            "events": webhook.events,
            "secret": secret.reveal(),
        }

    def describe(self, result: dict[str, Any]) -> str:
        return f"{result['secret']}\nWebhook {result['id']} of {result['tenant']}. Its secret is shown only now."
