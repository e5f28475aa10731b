"""Workers' reports, kept for a day, so that figures of the last minutes need no worker and no other server."""

from __future__ import annotations

from dataclasses import asdict, fields
from datetime import datetime, timedelta
from typing import Any

from django.db.models import OuterRef, Subquery
from django.utils import timezone

from fleet import live
from fleet.dialects.report import Report
from fleet.histogram import Histogram
from fleet.models import Worker, WorkerSample

KEPT = timedelta(days=1)


def take() -> int:
    """Ask every worker and write down what it says. Returns how many there are."""
    workers = list(Worker.objects.exclude(state=Worker.State.DISABLED).select_related("base_model"))
    now = timezone.now()
    found = live.ask(workers)
    WorkerSample.objects.bulk_create(
        WorkerSample(
            worker=worker,
            at=now,
            problem=(found[worker.name].problem or "")[:500],
            report=_stored(found[worker.name].report),
        )
        for worker in workers
    )
    WorkerSample.objects.filter(at__lt=now - KEPT).delete()
    return len(workers)


def latest() -> dict[int, WorkerSample]:
    """The last sample of each worker, by the worker's id."""
    return _each("-at", None)


def first_since(moment: datetime) -> dict[int, WorkerSample]:
    """The first sample of each worker after a moment that the worker answered."""
    return _each("at", moment)


def report_of(sample: WorkerSample) -> Report | None:
    if not sample.report:
        return None
    known = {field.name for field in fields(Report)}
    values: dict[str, Any] = {name: value for name, value in sample.report.items() if name in known}
    for name in ("first_token", "inter_token", "queue"):
        bounds, counts = values[name]
        values[name] = Histogram((*map(float, bounds), float("inf")), tuple(counts)) if counts else Histogram()
    return Report(**values | {"resident": tuple(values["resident"])})


def _each(order: str, since: datetime | None) -> dict[int, WorkerSample]:
    own = WorkerSample.objects.filter(worker=OuterRef("pk")).order_by(order)
    if since is not None:
        own = own.filter(at__gte=since).exclude(report={})
    # One look into the index for each worker; DISTINCT ON reads a whole day of all of them.
    wanted = Worker.objects.annotate(sample=Subquery(own.values("pk")[:1])).values("sample")
    return {row.worker_id: row for row in WorkerSample.objects.filter(pk__in=wanted)}


def _stored(report: Report | None) -> dict[str, Any]:
    if report is None:
        return {}
    values = asdict(report)
    for name in ("first_token", "inter_token", "queue"):
        histogram: Histogram = getattr(report, name)
        values[name] = [histogram.bounds[:-1], histogram.counts]  # JSON has no infinity
    return values
