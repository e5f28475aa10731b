"""Latencies across workers, from what their counters grew by."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from itertools import pairwise
from typing import Any

from django.db.models import Min
from django.db.models.functions import TruncHour

from fleet import samples
from fleet.dialects.report import Report
from fleet.histogram import NOTHING, Histogram
from fleet.models import WorkerSample
from tenants.latency import SHARES

NAMES = ("first_token", "inter_token", "queue")

Grown = tuple[Report, Report]
"""A worker's report, and a later one of the same worker."""


def latencies(grown: Iterable[Grown]) -> dict[str, dict[str, Any]]:
    """By :data:`NAMES`: ``count``, and the seconds that 50, 90 and 99 of a hundred did not exceed (or ``None``)."""
    pairs = list(grown)
    found = {}
    for name in NAMES:
        histogram = _merged(getattr(late, name).since(getattr(early, name)) for early, late in pairs)
        found[name] = {"count": histogram.count} | {label: histogram.quantile(of) for label, of in SHARES.items()}
    return found


def by_hour(since: datetime) -> dict[datetime, dict[str, dict[str, Any]]]:
    """:func:`latencies` by the hour, as workers were sampled; hours without a sample are left out."""
    firsts = (
        WorkerSample.objects.filter(at__gte=since, problem="")
        .annotate(hour=TruncHour("at"))
        .values("worker_id", "hour")
        .annotate(first=Min("pk"))
        .values("first")
    )
    rows = [*WorkerSample.objects.filter(pk__in=firsts), *samples.latest().values()]
    grown: dict[datetime, list[Grown]] = {}
    for early, late in pairwise(sorted(rows, key=lambda row: (row.worker_id, row.at))):
        before, after = samples.report_of(early), samples.report_of(late)
        if early.worker_id == late.worker_id and before is not None and after is not None:
            grown.setdefault(early.at.replace(minute=0, second=0, microsecond=0), []).append((before, after))
    return {hour: latencies(pairs) for hour, pairs in grown.items()}


def _merged(histograms: Iterable[Histogram]) -> Histogram:
    """Of workers that count in the same buckets, as all of one kind do; the others' are left out."""
    total = NOTHING
    for each in histograms:
        if not total.count:
            total = each
        elif each.bounds == total.bounds:
            total = Histogram(total.bounds, tuple(a + b for a, b in zip(total.counts, each.counts, strict=True)))
    return total
