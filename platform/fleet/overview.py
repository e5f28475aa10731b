"""How the platform does: what charts and alerts of an operator's first page are made of.

Read from roll-ups (a minute old at most) and from workers' samples (half a minute): no worker is asked, no ledger read,
and the number of queries does not depend on how many tenants or workers there are.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.db.models import Count, Q, Sum
from django.utils import timezone

from fleet import availability, looks, samples
from fleet.histogram import Histogram
from fleet.looks import Look
from fleet.models import Worker, WorkerSample
from tenants.latency import SHARES
from tenants.models import (
    BaseModel,
    Denial,
    InferenceRequest,
    ReconciliationRun,
    Tenant,
    UsageHour,
    UsageMark,
)

LATE = timedelta(minutes=10)
"""Roll-ups are made every minute."""

_SUMS = ("requests", "not_completed", "prompt_tokens", "cached_tokens", "completion_tokens", "cost")


def overview(hours: int = 24, minutes: int = 15) -> dict[str, Any]:
    """:param hours: that totals and the hourly series reach back. :param minutes: that latencies do.

    Money in micro-units, latencies in seconds. Rates are ``None`` where nothing was asked.
    """
    now = timezone.now()
    since = now.replace(minute=0, second=0, microsecond=0) - timedelta(hours=hours - 1)
    series = _series(since, hours)
    totals = {name: sum(hour[name] for hour in series) for name in (*_SUMS, "denied")}
    found = looks.sampled()
    first = samples.first_since(now - timedelta(minutes=minutes))
    return {
        "at": now,
        "since": since,
        "totals": {
            **totals,
            "error_rate": _share(totals["not_completed"], totals["requests"]),
            "denial_rate": _share(totals["denied"], totals["requests"] + totals["denied"]),
        },
        "running": InferenceRequest.objects.unscoped().running().count(),
        "tenants": Tenant.objects.aggregate(
            active=Count("pk", filter=Q(state="active")), suspended=Count("pk", filter=Q(state="suspended"))
        ),
        "hours": series,
        "workers": [_worker(look, first.get(look.worker.pk)) for look in found],
        "alerts": _alerts(now, found),
    }


def _series(since: datetime, hours: int) -> list[dict[str, Any]]:
    used = UsageHour.objects.unscoped().filter(hour__gte=since).values("hour").order_by("hour")
    by_hour = {row["hour"]: row for row in used.annotate(**{f"sum_{name}": Sum(name) for name in _SUMS})}
    refused = Denial.objects.unscoped().filter(hour__gte=since).values("hour").order_by("hour")
    denied = {row["hour"]: row["sum"] for row in refused.annotate(sum=Sum("count"))}
    found = []
    for number in range(hours):
        hour = since + timedelta(hours=number)
        row = by_hour.get(hour, {})
        sums = {name: row.get(f"sum_{name}", 0) for name in _SUMS}
        found.append({"hour": hour, **sums, "denied": denied.get(hour, 0)})
    return found


def _worker(look: Look, first: WorkerSample | None) -> dict[str, Any]:
    worker, report = look.worker, look.report
    before = samples.report_of(first) if first is not None else None
    latencies: dict[str, Any] = {}
    for name in ("first_token", "inter_token", "queue"):
        histogram: Histogram | None = getattr(report, name, None)
        if histogram is not None and before is not None and first is not None and look.at != first.at:
            histogram = histogram.since(getattr(before, name))
        latencies[name] = {
            "count": histogram.count if histogram else 0,
            **{label: histogram.quantile(share) if histogram else None for label, share in SHARES.items()},
        }
    return {
        "name": worker.name,
        "model": worker.base_model.name,
        "state": worker.state,
        "sampled_at": look.at,
        "stale": look.unseen,
        "problem": look.problem or None,
        "running": report.running if report else None,
        "waiting": report.waiting if report else None,
        "kv_usage": report.kv_usage if report else None,
        "slots": report.slots if report else None,
        "resident": len(report.resident) if report else None,
        "version": report.version if report else None,
        **latencies,
    }


def _alerts(now: datetime, workers: list[Look]) -> list[dict[str, str]]:
    """What somebody has to do something about: what it is, and what to do."""
    found = []
    for look in workers:
        name = look.worker.name
        if look.worker.state == Worker.State.DISABLED:
            continue
        if look.unseen:
            found.append(_alert("worker_unseen", name, "has not been sampled for two minutes", _SEE_CELERY))
        elif look.problem:
            found.append(_alert("worker_down", name, f"serves nothing: {look.problem}", _SEE_WORKER))
    served = availability.served(workers)
    for model, name in BaseModel.objects.filter(state="active").order_by("name").values_list("pk", "name"):
        if served.get(model, False) is False:
            found.append(_alert("model_unserved", name, "has no worker that serves it", _ADD_WORKER))
    mark = UsageMark.objects.filter(pk=1).first()
    if mark is not None and now - mark.covered_until > LATE:
        found.append(_alert("rollups_late", "usage", f"is rolled up until {mark.covered_until:%H:%M} UTC", _SEE_CELERY))
    run = ReconciliationRun.objects.filter(state="done").first()
    if run is not None and run.ok is False:
        found.append(_alert("books_wrong", str(run.pk), "found what does not add up", _SEE_BOOKS))
    return found


_SEE_WORKER = "Look at the worker's log; drain it if it does not come back."
_SEE_CELERY = "See whether Celery's worker and beat run, and Valkey (manage.py doctor)."
_ADD_WORKER = "Start a worker and register it (register_worker), or retire the model."
_SEE_BOOKS = "Read the findings (manage.py reconcile); accounts can be derived again with --repair."


def _alert(code: str, about: str, what: str, do: str) -> dict[str, str]:
    return {"code": code, "about": about, "message": f"{about} {what}.", "action": do}


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
