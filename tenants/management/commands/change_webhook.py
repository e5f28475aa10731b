from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db import transaction

from tenants import actors, webhooks
from tenants.management.command import JsonCommand, add_subject, find_tenant, subject


class Command(JsonCommand):
    help = "Change a webhook, pause it, or make it active again."
    example = "manage.py change_webhook acme --webhook 01890000-0000-7000-8000-000000000000 --state active"

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        add_subject(parser, "tenant", "the tenant's short name")
        parser.add_argument("--webhook", required=True, metavar="ID")
        parser.add_argument("--url", help="a public https:// address")
        parser.add_argument("--events", help="types of events, separated by commas, or *")
        parser.add_argument("--description", help="what it is for")
        parser.add_argument("--state", choices=("active", "paused"))

    def run(self, options: dict[str, Any]) -> dict[str, Any]:
        given = {name: options[name] for name in ("url", "events", "description", "state") if options[name] is not None}
        if not given:
            raise CommandError("Say what to change: --url, --events, --description or --state.")
        if "events" in given:
            given["events"] = [event.strip() for event in given["events"].split(",") if event.strip()]
        with transaction.atomic():
            webhook = webhooks.find(find_tenant(subject(options, "tenant")), options["webhook"])
            webhooks.change(actors.of_command(), webhook, **given)
        return {"id": str(webhook.pk), "url": webhook.url, "events": webhook.events, "state": webhook.state}

    def describe(self, result: dict[str, Any]) -> str:
        return f"Webhook {result['id']}: {result['state']}, {result['url']}, {','.join(result['events'])}."
