from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Annotated, Any, Literal

from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from ninja import Query, Schema
from pydantic import Field

from gateway.api.callers import TenantKey, _bearer, caller
from gateway.api.moments import Border
from gateway.api.mutations import management_router
from gateway.errors import bad_request
from tenants.addresses import address_of
from tenants.callers import Caller, caller_of_key
from tenants.errors import Forbidden
from tenants.models import ApiKey
from tenants.usage import MOST_DAYS, Bucket, Part, each_used, used
from tenants.usage_csv import CSV, usage_csv

HOUR = timedelta(hours=1)


class UsageKey(TenantKey):
    """As :class:`~gateway.api.callers.TenantKey`, and keys of scope ``inference`` as well."""

    def __call__(self, request: HttpRequest) -> Any:
        if "HTTP_AUTHORIZATION" in request.META:
            return caller_of_key(_bearer(request), address_of(request), inference=True)
        return super().__call__(request)


router = management_router("usage", UsageKey())


class UsageRow(Schema):
    """What was used in one hour, day or month (UTC); ``null`` where the row is not of one of them. A request belongs to
    the hour in which it was admitted, and is counted when it has ended. ``prompt_tokens`` includes ``cached_tokens``.
    """

    at: datetime | None = Field(description="Beginning of the hour, day or month; null with bucket=all")
    day: date | None = Field(description="The day of at; null with bucket=all or month")
    model: str | None
    base_model: str | None
    adapter: str | None
    key: str | None = Field(description="The key's id")
    member: str | None = Field(description="The member's id")
    requests: int
    not_completed: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    cost: int = Field(description="Micro-units: millionths of the currency")


class Usage(Schema):
    tenant: str
    since: datetime
    until: datetime
    data: list[UsageRow]


def _by_model() -> list[Part]:
    return ["model"]


class Wanted(Schema):
    """``from`` and ``to`` are rounded to whole hours, outwards. ``days`` counts today and goes without them."""

    days: Annotated[int, Field(ge=1, le=MOST_DAYS)] | None = None
    since: Annotated[Border | None, Field(alias="from", description="Default: 30 days ago")] = None
    until: Annotated[Border | None, Field(alias="to", description="Default: now")] = None
    bucket: Bucket = "day"
    by: Annotated[list[Part], Field(default_factory=_by_model, description="What a row is about, besides its time")]
    format: Annotated[
        Literal["json", "csv"] | None, Field(description="Default: csv where the header Accept says text/csv")
    ] = None


_ANSWERS = {200: {"content": {CSV: {"schema": {"type": "string"}}}}}


@router.get(
    "/api/usage",
    response=Usage,
    summary="What the account used, by time and model, adapter, key or member",
    openapi_extra={"responses": _ANSWERS},
)
def get_usage(request: HttpRequest, wanted: Query[Wanted]) -> Usage | HttpResponse:
    """Equal to the ledger at any moment. Any key of the account may ask, by key and member those that manage."""
    who = caller(request)
    if not {"key", "member"}.isdisjoint(wanted.by):
        _require_managing(who)
    since, until = _span(wanted)
    asked: dict[str, Any] = {"bucket": wanted.bucket, "by": wanted.by}
    if (wanted.format or ("csv" if CSV in request.headers.get("Accept", "") else "json")) == "csv":
        return usage_csv(wanted.by, each_used(who.tenant, since, until, **asked), who.tenant.slug)
    found = used(who.tenant, since, until, **asked)
    return Usage(tenant=who.tenant.slug, since=since, until=until, data=[_row(row, wanted.bucket) for row in found])


def _require_managing(who: Caller) -> None:
    if who.key is not None and who.key.scope != ApiKey.Scope.MANAGE:
        raise Forbidden("by: keys and members need a key of scope manage.")


def _span(wanted: Wanted) -> tuple[datetime, datetime]:
    now = timezone.now()
    if wanted.days is not None and (wanted.since is not None or wanted.until is not None):
        raise bad_request("days goes without from and to.", "days")
    until = _next_hour(wanted.until or now)
    if wanted.since is not None:
        since = _hour(wanted.since)
    elif wanted.until is not None:
        since = until - timedelta(days=30)
    else:
        today = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        since = today - timedelta(days=(wanted.days or 30) - 1)
    if not since < until <= since + timedelta(days=MOST_DAYS):
        raise bad_request(f"from has to be before to, and at most {MOST_DAYS} days before it.", "from")
    return since, until


def _hour(moment: datetime) -> datetime:
    return moment.replace(minute=0, second=0, microsecond=0)


def _next_hour(moment: datetime) -> datetime:
    hour = _hour(moment)
    try:
        return hour if hour == moment else hour + HOUR
    except OverflowError:
        raise bad_request("to has to be a time before the year 9999 ends.", "to") from None


def _row(row: dict[str, Any], bucket: Bucket) -> UsageRow:
    day = row["at"].astimezone(UTC).date() if bucket in ("hour", "day") else None
    nothing: dict[str, Any] = dict.fromkeys(("model", "base_model", "adapter", "key", "member"))
    return UsageRow(**nothing | row, day=day)
