"""How one tenant does: what its overview's charts and figures are made of. Nothing of anybody else's is in it."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.db.models import Sum
from django.utils import timezone

from tenants.attention import attention
from tenants.latency import latencies
from tenants.models import Adapter, ApiKey, Denial, Tenant
from tenants.standing import standing
from tenants.usage import SUMS, used

_HOUR = timedelta(hours=1)


def overview(tenant: Tenant, hours: int = 24) -> dict[str, Any]:
    """``totals`` and ``hours`` as of :func:`fleet.overview.overview`, equal to the ledger; ``latency``: of the
    last hour, see :func:`tenants.latency.latencies`; ``standing``, ``alerts`` and ``steps``.
    """
    now = timezone.now()
    since = now.replace(minute=0, second=0, microsecond=0) - _HOUR * (hours - 1)
    series = _series(tenant, since, hours)
    totals = {name: sum(hour[name] for hour in series) for name in (*SUMS, "denied")}
    stands = standing(tenant)[0]
    return {
        "totals": {
            **totals,
            "error_rate": _share(totals["not_completed"], totals["requests"]),
            "denial_rate": _share(totals["denied"], totals["requests"] + totals["denied"]),
        },
        "hours": series,
        "latency": latencies(tenant, now - _HOUR),
        "standing": stands,
        "alerts": attention(tenant, stands),
        "steps": _steps(tenant, stands["settled_count"] > 0),
    }


def _series(tenant: Tenant, since: datetime, hours: int) -> list[dict[str, Any]]:
    by_hour = {row["at"]: row for row in used(tenant, since, since + _HOUR * hours, bucket="hour", by=[])}
    refused = Denial.objects.filter(tenant=tenant, hour__gte=since).values("hour").order_by("hour")
    denied = {row["hour"]: row["sum"] for row in refused.annotate(sum=Sum("count"))}
    moments = [since + _HOUR * number for number in range(hours)]
    return [
        {
            "hour": at,
            **{name: by_hour[at][name] if at in by_hour else 0 for name in SUMS},
            "denied": denied.get(at, 0),
        }
        for at in moments
    ]


def _steps(tenant: Tenant, asked: bool) -> dict[str, bool]:
    """What a new tenant does first, and whether it is done."""
    keys = ApiKey.objects.working().filter(tenant=tenant, scope=ApiKey.Scope.INFERENCE)
    return {
        "key": keys.exists(),
        "adapter": Adapter.objects.filter(tenant=tenant).exists(),
        "request": asked,
    }


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
