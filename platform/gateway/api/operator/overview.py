from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from django.http import HttpRequest
from ninja import Query, Schema
from pydantic import Field

from fleet.overview import overview
from gateway.api.callers import OperatorBearer
from gateway.api.mutations import management_router

router = management_router("operators: overview", OperatorBearer())


class Sums(Schema):
    """``cost`` in micro-units; ``denied``: requests that were refused at admission."""

    requests: int
    not_completed: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    cost: int
    denied: int


class Totals(Sums):
    """``error_rate``: of admitted requests, ``denial_rate``: of all; ``null`` where there were none."""

    error_rate: float | None
    denial_rate: float | None


class Hour(Sums):
    hour: datetime


class Latency(Schema):
    """Seconds that 50, 90 and 99 of a hundred did not exceed; ``null``: there were none."""

    count: int
    p50: float | None
    p90: float | None
    p99: float | None


class SampledWorker(Schema):
    """As last sampled. Latencies are those of the last ``minutes``, or since the worker's start where that is later."""

    name: str
    model: str
    state: Literal["active", "draining", "disabled"]
    sampled_at: datetime | None
    stale: bool
    problem: str | None
    running: int | None
    waiting: int | None
    kv_usage: float | None
    slots: int | None
    resident: int | None
    version: str | None
    first_token: Latency
    inter_token: Latency
    queue: Latency


class Alert(Schema):
    code: str
    about: str
    message: str
    action: str


class TenantCounts(Schema):
    active: int
    suspended: int


class Overview(Schema):
    at: datetime
    since: datetime
    totals: Totals
    running: int
    tenants: TenantCounts
    hours: list[Hour]
    workers: list[SampledWorker]
    alerts: list[Alert]


class Reach(Schema):
    hours: int = Field(24, ge=1, le=24 * 31, description="that totals and the hourly series reach back")
    minutes: int = Field(15, ge=1, le=24 * 60, description="that latencies reach back")


@router.get("/api/operator/overview", response=Overview, summary="How the platform does, and what needs doing")
def get_overview(request: HttpRequest, reach: Query[Reach]) -> dict[str, Any]:
    return overview(reach.hours, reach.minutes)
