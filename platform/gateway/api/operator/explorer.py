"""What went through the platform, across tenants: requests, ledger entries, refusals, usage."""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from typing import Any, Literal
from uuid import UUID

from django.db.models import Sum
from django.db.models.functions import TruncDay
from django.http import HttpRequest
from django.utils import timezone
from ninja import Query, Schema
from pydantic import Field

from gateway.api import denials, requests
from gateway.api.callers import OperatorBearer
from gateway.api.moments import Border
from gateway.api.mutations import management_router
from gateway.api.pages import Page, as_page, page
from gateway.api.pages import Wanted as InPages
from gateway.api.text import Text
from tenants import explorer, provisioning
from tenants.errors import Invalid
from tenants.explorer import State, Wanted
from tenants.models import LedgerEntry, UsageHour

router = management_router("operators: requests", OperatorBearer())

MOST_ROWS = 10_000


class Filter(Schema):
    """``model``: a base model's name, or ``tenant/adapter``. Times are of admission."""

    tenant: Text | None = Field(None, max_length=63)
    key: Text | None = Field(None, max_length=32, description="its public id")
    model: Text | None = Field(None, max_length=200)
    since: Border | None = None
    until: Border | None = None

    def wanted(self) -> Wanted:
        return Wanted(**self.model_dump())


class RequestFilter(Filter):
    member: UUID | None = Field(None, description="a member's id")
    state: State | None = None


class OperatorRequest(requests.Request):
    tenant: str


class LedgerObject(Schema):
    """How one request's hold ended. ``cost`` in micro-units; ``kind`` ``void``: nothing was charged."""

    id: str = Field(description="the request's")
    tenant: str
    key: str
    model: str
    kind: Literal["settle", "void"]
    outcome: Literal["completed", "cancelled", "failed", "abandoned"]
    finish_reason: str | None
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    cost: int
    admitted_at: datetime
    at: datetime


class OperatorDenial(denials.Denial):
    tenant: str


class UsageObject(Schema):
    """One tenant's use of one base model on one day (UTC), its adapters included. ``cost`` in micro-units."""

    day: date
    tenant: str
    base_model: str
    requests: int
    not_completed: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    cost: int


class UsageList(Schema):
    object: Literal["list"] = "list"
    data: list[UsageObject]


def _request(row: Any) -> OperatorRequest:
    return OperatorRequest(**requests.shown(row).model_dump(), tenant=row.tenant.slug)


def _entry(row: Any) -> LedgerObject:
    names = ("kind", "outcome", "prompt_tokens", "cached_tokens", "completion_tokens", "cost", "admitted_at")
    return LedgerObject(
        **{name: getattr(row, name) for name in names},
        id=str(row.request_id),
        tenant=row.tenant.slug,
        key=row.key.public_id,
        model=str(row.adapter_version.adapter) if row.adapter_version is not None else row.base_model.name,
        finish_reason=row.finish_reason or None,
        at=row.created_at,
    )


def _denial(row: Any) -> OperatorDenial:
    return OperatorDenial(**denials.shown(row).model_dump() | {"id": str(row.pk)}, tenant=row.tenant.slug)


@router.get("/api/operator/requests", response=Page[OperatorRequest], summary="Everybody's requests, newest first")
def list_requests(request: HttpRequest, window: InPages, wanted: Query[RequestFilter]) -> dict[str, Any]:
    found, more = explorer.page_of_requests(None, wanted.wanted(), after=window.after, limit=window.limit)
    return as_page([_request(row) for row in found], more)


@router.get("/api/operator/requests/{request_id}", response=OperatorRequest, summary="One request, and what it cost")
def get_request(request: HttpRequest, request_id: str) -> OperatorRequest:
    return _request(explorer.request_of(None, request_id))


@router.get("/api/operator/ledger", response=Page[LedgerObject], summary="Everybody's ledger, the newest request first")
def list_ledger(request: HttpRequest, window: InPages, wanted: Query[Filter]) -> dict[str, Any]:
    every = LedgerEntry.objects.unscoped().select_related(*explorer.JOINED)
    rows = explorer.matching(every, wanted.wanted(), "admitted_at", request="request_id")
    return page(rows, window, _entry, name="request_id", order="-request_id")


class DenialFilter(Filter):
    code: Text | None = Field(None, max_length=40)


@router.get("/api/operator/denials", response=Page[OperatorDenial], summary="Why requests were refused, everybody's")
def list_denials(request: HttpRequest, window: InPages, wanted: Query[DenialFilter]) -> dict[str, Any]:
    found, more = explorer.page_of_denials(None, wanted.wanted(), after=window.after, limit=window.limit, by_hour=False)
    return as_page([_denial(row) for row in found], more)


class UsageFilter(Schema):
    """Whole days (UTC), both included."""

    since: date | None = Field(None, description="thirty days ago if left out")
    until: date | None = Field(None, description="today if left out")
    tenant: Text | None = Field(None, max_length=63)


@router.get(
    "/api/operator/usage",
    response=UsageList,
    summary="What everybody used, by day, tenant and base model, as of the last roll-up",
)
def get_usage(request: HttpRequest, wanted: Query[UsageFilter]) -> UsageList:
    today = timezone.now().date()
    until = wanted.until or today
    since = wanted.since or date.fromordinal(max(1, until.toordinal() - 29))
    begin, end = datetime.combine(since, time.min, UTC), datetime.combine(until, time.max, UTC)
    rows = UsageHour.objects.unscoped().filter(hour__gte=begin, hour__lte=end)
    if wanted.tenant is not None:
        rows = rows.filter(tenant=provisioning.find(wanted.tenant))
    names = ("requests", "not_completed", "prompt_tokens", "cached_tokens", "completion_tokens", "cost")
    sums = (
        rows.annotate(day=TruncDay("hour"))
        .values("day", "tenant__slug", "base_model__name")
        .annotate(**{f"sum_{name}": Sum(name) for name in names})
        .order_by("-day", "tenant__slug", "base_model__name")[: MOST_ROWS + 1]
    )
    found = list(sums)
    if len(found) > MOST_ROWS:
        raise Invalid(f"These are more than {MOST_ROWS} rows: ask for fewer days or one tenant.", "since")
    return UsageList(
        data=[
            UsageObject(
                day=row["day"].date(),
                tenant=row["tenant__slug"],
                base_model=row["base_model__name"],
                **{name: row[f"sum_{name}"] for name in names},
            )
            for row in found
        ]
    )
