from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser

from tenants.management.command import JsonCommand, add_subject, only_tenant
from tenants.models import InferenceRequest


class Command(JsonCommand):
    help = "The last requests, of everybody or one tenant: how far they came, how they ended and what they cost."
    example = "manage.py requests acme --last 50"

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        add_subject(parser, "tenant", "only of this one; default: everybody")
        parser.add_argument("--running", action="store_true", help="only those that run now")
        parser.add_argument("--last", type=int, default=20, help="so many (default: %(default)s)")

    def run(self, options: dict[str, Any]) -> dict[str, Any]:
        if not 1 <= options["last"] <= 1000:
            raise CommandError("--last has to be between 1 and 1000.")
        rows, tenant = InferenceRequest.objects.unscoped(), only_tenant(options)
        if tenant is not None:
            rows = rows.filter(tenant=tenant)
        if options["running"]:
            rows = rows.filter(state=InferenceRequest.State.RUNNING)
        joined = ("tenant", "key", "base_model", "adapter_version__adapter__tenant", "ledger_entry")
        found = [_shown(row) for row in rows.select_related(*joined).order_by("-pk")[: options["last"]]]
        return {"requests": found}

    def describe(self, result: dict[str, Any]) -> str:
        lines = [
            f"{row['admitted_at']} {row['id']} {row['tenant']} {row['model']}: {row['state']}"
            f"{' (' + row['finish_reason'] + ')' if row['finish_reason'] else ''}, "
            f"{row['prompt_tokens']} + {row['completion_tokens']} tokens, {row['cost']} micro-units"
            for row in result["requests"]
        ]
        return "\n".join(lines) or "No requests."


def _shown(row: Any) -> dict[str, Any]:
    entry, version = getattr(row, "ledger_entry", None), row.adapter_version
    return {
        "id": str(row.pk),
        "tenant": row.tenant.slug,
        "key": row.key.public_id,
        "model": str(version.adapter) if version is not None else row.base_model.name,
        "admitted_at": row.admitted_at.isoformat(),
        "state": entry.outcome if entry is not None else "running",
        "finish_reason": (entry.finish_reason or None) if entry is not None else None,
        "prompt_tokens": entry.prompt_tokens if entry is not None else row.prompt_tokens,
        "completion_tokens": entry.completion_tokens if entry is not None else row.emitted_tokens,
        "cost": entry.cost if entry is not None else row.held_cost,
    }
