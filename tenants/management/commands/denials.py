from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db.models import QuerySet
from django.utils import timezone

from tenants.counted import counted
from tenants.management.command import JsonCommand, add_subject, find_tenant, subject
from tenants.models import Denial


class Command(JsonCommand):
    help = "Why a tenant's requests were refused: how many for each reason and hour, and the last of each."
    example = "manage.py denials acme --hours 24"

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        add_subject(parser, "tenant", "the tenant's short name")
        parser.add_argument("--hours", type=int, default=24, help="so many hours back (default: %(default)s)")

    def run(self, options: dict[str, Any]) -> dict[str, Any]:
        tenant = find_tenant(subject(options, "tenant"))
        if not 1 <= options["hours"] <= 24 * 366:
            raise CommandError("--hours has to be between 1 and 8784.")
        since = timezone.now() - timedelta(hours=options["hours"])
        found: QuerySet[Denial] = Denial.objects.filter(tenant=tenant, last_at__gte=since)
        rows = [
            {
                "hour": denial.hour.isoformat(),
                "key": denial.key.public_id,
                "code": denial.code,
                "limit": denial.limit or None,
                "subject": denial.subject or None,
                "count": denial.count,
                "last_at": denial.last_at.isoformat(),
                "last_request": str(denial.last_request_id),
                "last_model": denial.last_model,
                "last_message": denial.last_message,
            }
            for denial in found.select_related("key").order_by("-last_at")
        ]
        return {"tenant": tenant.slug, "refused": sum(row["count"] for row in rows), "denials": rows}

    def describe(self, result: dict[str, Any]) -> str:
        lines = [f"{counted(result['refused'], 'refusal')} of requests of {result['tenant']}."]
        for row in result["denials"]:
            lines.append(
                f"{row['count']:>8} × {row['code']} ({row['limit'] or 'no limit'}) by key {row['key']}, last at "
                f"{row['last_at']}: {row['last_message']}"
            )
        return "\n".join(lines)
