from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser

from tenants.counted import counted
from tenants.management.command import JsonCommand, add_subject, find_tenant, subject
from tenants.models import Batch

_TIMES = ("created_at", "expires_at", "resume_at", "completed_at", "failed_at", "expired_at", "cancelled_at")
_SAME = ("status", "endpoint", "input_file_id", "output_file_id", "error_file_id", "total", "completed", "failed")


class Command(JsonCommand):
    help = "The batches of a tenant, newest first: how far each is, and why one failed."
    example = "manage.py batches acme --unfinished"

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        add_subject(parser, "tenant", "the tenant's short name")
        parser.add_argument("--unfinished", action="store_true", help="only those that have not ended")
        parser.add_argument("--limit", type=int, default=100, metavar="N", help="at most (default: %(default)s)")

    def run(self, options: dict[str, Any]) -> dict[str, Any]:
        tenant = find_tenant(subject(options, "tenant"))
        if not 1 <= options["limit"] <= 10_000:
            raise CommandError("--limit has to be between 1 and 10000.")
        found = Batch.objects.filter(tenant=tenant).select_related("key").order_by("-pk")
        if options["unfinished"]:
            found = found.filter(status__in=Batch.UNFINISHED)
        return {"tenant": tenant.slug, "batches": [_row(batch) for batch in found[: options["limit"]]]}

    def describe(self, result: dict[str, Any]) -> str:
        lines = [f"{result['tenant']}: {counted(len(result['batches']), 'batch', 'batches')}."]
        for row in result["batches"]:
            done = f"{row['completed']} answered, {row['failed']} failed of {row['total']}"
            lines.append(f"{row['id']}  {row['status']:<11}  {done}, since {row['created_at']}")
            lines += [f"    line {error['line']}: {error['message']}" for error in row["errors"][:3]]
        return "\n".join(lines)


def _row(batch: Batch) -> dict[str, Any]:
    times = {name: getattr(batch, name) for name in _TIMES}
    return {
        "id": batch.pk,
        **{name: getattr(batch, name) for name in _SAME},
        "key": batch.key.public_id,
        "tokens": batch.prompt_tokens + batch.completion_tokens,
        **{name: None if moment is None else moment.isoformat() for name, moment in times.items()},
        "errors": batch.errors,
    }
