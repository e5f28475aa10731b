from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db.models import Count, Q, QuerySet, Sum
from django.utils import timezone

from tenants.management.command import JsonCommand, add_subject, find_tenant, subject
from tenants.models import LedgerEntry

_TOTALS = {
    "requests": Count("id"),
    "prompt_tokens": Sum("prompt_tokens", default=0),
    "cached_tokens": Sum("cached_tokens", default=0),
    "completion_tokens": Sum("completion_tokens", default=0),
    "cost": Sum("cost", default=0),
    "not_completed": Count("id", filter=~Q(outcome="completed")),
}


class Command(JsonCommand):
    help = "What a tenant has used, from the ledger: in all, and for each base model and adapter."
    example = "manage.py usage acme --days 7"

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        add_subject(parser, "tenant", "the tenant's short name")
        parser.add_argument("--days", type=int, help="only the last so many days; default: since ever")

    def run(self, options: dict[str, Any]) -> dict[str, Any]:
        tenant = find_tenant(subject(options, "tenant"))
        entries: QuerySet[LedgerEntry] = LedgerEntry.objects.filter(tenant=tenant)
        if options["days"] is not None:
            if not 1 <= options["days"] <= 36500:
                raise CommandError("--days has to be between 1 and 36500.")
            entries = entries.filter(created_at__gte=timezone.now() - timedelta(days=options["days"]))
        adapter = "adapter_version__adapter"
        groups = (
            entries.values("base_model__name", f"{adapter}__tenant__slug", f"{adapter}__name")
            .annotate(**_TOTALS)
            .order_by("base_model__name", f"{adapter}__tenant__slug", f"{adapter}__name")
        )
        models = []
        for group in groups:
            base, owner, name = (
                group.pop("base_model__name"),
                group.pop(f"{adapter}__tenant__slug"),
                group.pop(f"{adapter}__name"),
            )
            models.append({"model": f"{owner}/{name}" if name else base, "base_model": base, **group})
        running = tenant.requests.running().count()
        return {"tenant": tenant.slug, **entries.aggregate(**_TOTALS), "running": running, "models": models}

    def describe(self, result: dict[str, Any]) -> str:
        head = (
            f"{'model':<40} {'requests':>9} {'prompt':>10} {'cached':>10} {'completion':>11} {'micro-units':>12}"
            f" {'not completed':>14}"
        )
        rows = [*result["models"], {**result, "model": "in all"}]
        lines = [
            f"{row['model']:<40} {row['requests']:>9} {row['prompt_tokens']:>10} {row['cached_tokens']:>10}"
            f" {row['completion_tokens']:>11} {row['cost']:>12} {row['not_completed']:>14}"
            for row in rows
        ]
        return "\n".join([head, *lines, f"{result['running']} running now"])
