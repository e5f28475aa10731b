from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from django.http import HttpRequest
from ninja import Query, Schema
from pydantic import Field

from gateway.api.callers import TenantKey, caller
from gateway.api.moments import Border
from gateway.api.mutations import management_router
from gateway.api.pages import Page, Window, as_page
from gateway.api.text import Text
from tenants import explorer
from tenants.explorer import denial_id
from tenants.models import Denial as Row

router = management_router("denials", TenantKey())

Name = Annotated[Text, Field(max_length=200)]


class LastDenial(Schema):
    """The last request that was refused for this reason in this hour."""

    at: datetime
    request_id: str
    model: str
    message: str


class Denial(Schema):
    """Requests refused for one reason within one hour (UTC)."""

    id: str
    object: str = "denial"
    hour: datetime
    key: str = Field(description="Id of the key that called")
    code: str
    limit: str | None = Field(description="The limit that was hit, if it was one")
    subject: str | None = Field(description="Whose limit: tenant, member or key")
    count: int
    last: LastDenial


class Filters(Window):
    since: Annotated[Border | None, Field(alias="from", description="Hours that begin then or later")] = None
    until: Annotated[Border | None, Field(alias="to", description="Hours that begin before then")] = None
    key: Annotated[Name | None, Field(description="A key's id")] = None
    code: Name | None = None
    limit_name: Annotated[Name | None, Field(description="Such as tokens_per_minute")] = None


@router.get("/api/denials", response=Page[Denial], summary="Why requests were refused, by hour, newest first")
def list_denials(request: HttpRequest, wanted: Query[Filters]) -> dict[str, Any]:
    """Kept for 30 days; a refusal is here within about a second."""
    asked = explorer.Wanted(
        since=wanted.since, until=wanted.until, key=wanted.key, code=wanted.code, limit=wanted.limit_name
    )
    found, more = explorer.page_of_denials(caller(request).tenant, asked, after=wanted.after, limit=wanted.limit)
    return as_page([shown(row) for row in found], more)


def shown(row: Row) -> Denial:
    last = LastDenial(
        at=row.last_at, request_id=str(row.last_request_id), model=row.last_model, message=row.last_message
    )
    return Denial(
        id=denial_id(row),
        hour=row.hour,
        key=row.key.public_id,
        code=row.code,
        limit=row.limit or None,
        subject=row.subject or None,
        count=row.count,
        last=last,
    )
