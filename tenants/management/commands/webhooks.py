from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser

from tenants import webhooks
from tenants.management.command import JsonCommand, add_subject, find_tenant, subject
from tenants.models import Tenant, Webhook, WebhookDelivery

MOST = 1000


class Command(JsonCommand):
    help = "A tenant's webhooks, or what was sent to one of them lately and how it ended."
    example = "manage.py webhooks acme --webhook 01890000-0000-7000-8000-000000000000"

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        add_subject(parser, "tenant", "the tenant's short name")
        parser.add_argument("--webhook", metavar="ID", help="its last deliveries instead")
        parser.add_argument("--most", type=int, default=50, help="so many deliveries (default: %(default)s)")

    def run(self, options: dict[str, Any]) -> dict[str, Any]:
        tenant = find_tenant(subject(options, "tenant"))
        if not 1 <= options["most"] <= MOST:
            raise CommandError(f"--most has to be between 1 and {MOST}.")
        if options["webhook"]:
            return _deliveries(webhooks.find(tenant, options["webhook"]), options["most"])
        return {"tenant": tenant.slug, "webhooks": _webhooks(tenant)}

    def describe(self, result: dict[str, Any]) -> str:
        if "deliveries" in result:
            head = f"{result['url']} ({result['state']})"
            rows = [
                f"{d['id']}  {d['type']:<22} {d['state']:<10} {d['tries']:>2} tries  {_last(d['attempts'])}"
                for d in result["deliveries"]
            ]
        else:
            head = f"{len(result['webhooks'])} webhooks of {result['tenant']}"
            rows = [f"{w['id']}  {w['state']:<9} {w['url']}  {','.join(w['events'])}" for w in result["webhooks"]]
        return "\n".join([head, *rows])


def _webhooks(tenant: Tenant) -> list[dict[str, Any]]:
    return [
        {
            "id": str(webhook.pk),
            "url": webhook.url,
            "description": webhook.description,
            "events": webhook.events,
            "state": webhook.state,
            "failing_since": webhook.failing_since and webhook.failing_since.isoformat(),
        }
        for webhook in Webhook.objects.filter(tenant=tenant)
    ]


def _deliveries(webhook: Webhook, most: int) -> dict[str, Any]:
    rows = WebhookDelivery.objects.filter(webhook__tenant=webhook.tenant, webhook=webhook).select_related("event")
    return {
        "webhook": str(webhook.pk),
        "url": webhook.url,
        "state": webhook.state,
        "deliveries": [
            {
                "id": str(row.pk),
                "event": str(row.event_id),
                "type": row.event.type,
                "state": row.state,
                "tries": row.tries,
                "attempts": [
                    {"at": a.at.isoformat(), "status": a.status, "milliseconds": a.milliseconds, "error": a.error}
                    for a in row.attempts.filter(tenant=webhook.tenant)
                ],
            }
            for row in rows.order_by("-id")[:most]
        ],
    }


def _last(attempts: list[dict[str, Any]]) -> str:
    if not attempts:
        return "not tried yet"
    last = attempts[-1]
    return f"last {last['at']}: {last['status'] or last['error']} after {last['milliseconds']} ms"
