"""What goes on now: requests that run, and what ended in the last minute; by indexes, however long the ledger."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.db.models import Count, Q, Sum
from django.utils import timezone

from tenants.models import InferenceRequest, LedgerEntry, Tenant

MINUTE = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class Recent:
    """:param running: requests now. The others are of requests that ended within the last minute; ``cost`` in
    micro-units.
    """

    running: int
    requests: int
    not_completed: int
    prompt_tokens: int
    completion_tokens: int
    cost: int


def recent(tenant: Tenant | None) -> Recent:
    """:param tenant: ``None``: of everybody."""
    if tenant is not None:
        return recents([tenant])[tenant.pk]
    sums = _ended(LedgerEntry.objects.unscoped()).aggregate(**_SUMS)
    return _recent(InferenceRequest.objects.unscoped().running().count(), sums)


def recents(tenants: Collection[Tenant]) -> dict[UUID, Recent]:
    """Of each of these tenants, by its id; two queries, however many."""
    ids = [tenant.pk for tenant in tenants]
    running: Any = InferenceRequest.objects.unscoped().running().filter(tenant__in=ids)
    counts = dict(running.values_list("tenant").annotate(Count("pk")))
    ended = _ended(LedgerEntry.objects.unscoped().filter(tenant__in=ids)).values("tenant").annotate(**_SUMS)
    sums = {row.pop("tenant"): row for row in ended}
    return {pk: _recent(counts.get(pk, 0), sums.get(pk, {})) for pk in ids}


_SUMS = {
    "requests": Count("pk"),
    "not_completed": Count("pk", filter=~Q(outcome=LedgerEntry.Outcome.COMPLETED)),
    # Not by the columns' own names: what is annotated must not hide them.
    "prompt": Sum("prompt_tokens"),
    "completion": Sum("completion_tokens"),
    "spent": Sum("cost"),
}


def _ended(rows: Any) -> Any:
    return rows.filter(created_at__gte=timezone.now() - MINUTE)


def _recent(running: int, sums: dict[str, Any]) -> Recent:
    return Recent(
        running=running,
        requests=sums.get("requests", 0),
        not_completed=sums.get("not_completed", 0),
        prompt_tokens=sums.get("prompt") or 0,
        completion_tokens=sums.get("completion") or 0,
        cost=sums.get("spent") or 0,
    )
