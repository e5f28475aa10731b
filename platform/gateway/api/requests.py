from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal, cast
from uuid import UUID

from django.http import HttpRequest
from ninja import Query, Schema
from pydantic import Field

from gateway.api.callers import TenantKey, caller
from gateway.api.moments import Border
from gateway.api.mutations import management_router
from gateway.api.pages import Page, Window, as_page
from gateway.api.text import Text
from tenants import explorer
from tenants.explorer import State
from tenants.models import InferenceRequest, LedgerEntry

router = management_router("requests", TenantKey())

Name = Annotated[Text, Field(max_length=200)]


class Held(Schema):
    """What was taken from the limits when the request was admitted."""

    prompt_tokens: int
    max_tokens: int = Field(description="Most generated tokens, over all choices")
    cost: int = Field(description="Micro-units")


class Billed(Schema):
    """What it used. Void: nothing, because it failed before its first token."""

    kind: Literal["settle", "void"]
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    cost: int = Field(description="Micro-units")


class PriceAtAdmission(Schema):
    """Micro-units per million tokens."""

    input: int
    cached_input: int
    output: int


class Request(Schema):
    """One admitted request. ``billed``, the times and what else follows from the end are null while it runs."""

    id: str
    object: Literal["request"] = "request"
    state: State
    model: str
    base_model: str
    adapter_version: int | None
    key: str = Field(description="The key's id")
    member: str | None = Field(description="Id of the member whose key it was, as far as they are still one")
    admitted_at: datetime
    ended_at: datetime | None
    duration_ms: int | None = Field(description="From admission to the end")
    first_token_ms: int | None = Field(description="From admission to the first token, as the gateway saw it")
    queue_ms: int | None = Field(description="In the worker's queue, as far as the worker said it")
    prefill_ms: int | None = Field(description="From there to the first token, as far as the worker said it")
    emitted_tokens: int = Field(description="Generated tokens, as far as they are durably known")
    held: Held
    billed: Billed | None
    price: PriceAtAdmission | None
    finish_reason: str | None = Field(
        description="The model's; of a request that was not completed the code of what ended it, `stopped_by_client` "
        "where that was its client"
    )


class Filters(Window):
    since: Annotated[Border | None, Field(alias="from", description="Admitted then or later")] = None
    until: Annotated[Border | None, Field(alias="to", description="Admitted before then")] = None
    key: Annotated[Name | None, Field(description="A key's id")] = None
    member: Annotated[UUID | None, Field(description="A member's id")] = None
    model: Annotated[Name | None, Field(description="As requests name it: a base model, or tenant/adapter")] = None
    state: State | None = None


@router.get(
    "/api/requests",
    response=Page[Request],
    summary="Requests, newest first: what was held, what was billed, how they ended",
)
def list_requests(request: HttpRequest, wanted: Query[Filters]) -> dict[str, Any]:
    names = {"since", "until", "key", "member", "model", "state"}
    asked = explorer.Wanted(**wanted.model_dump(include=names))
    found, more = explorer.page_of_requests(caller(request).tenant, asked, after=wanted.after, limit=wanted.limit)
    return as_page([shown(row) for row in found], more)


@router.get("/api/requests/{request_id}", response=Request, summary="One request")
def get_request(request: HttpRequest, request_id: str) -> Request:
    """``request_id`` is the answer's header ``x-request-id``. A refused request is not here: see ``/api/denials``."""
    return shown(explorer.request_of(caller(request).tenant, request_id))


def shown(row: InferenceRequest) -> Request:
    entry: LedgerEntry | None = getattr(row, "ledger_entry", None)
    version = row.adapter_version
    # A request's member stays when that member is gone; there is no row to name then.
    member = getattr(row, "member", None) if row.member_id is not None else None
    ended = row.settled_at
    price = row.price
    return Request(
        id=str(row.pk),
        state=cast(State, "running" if entry is None else entry.outcome),
        model=str(version.adapter) if version is not None else row.base_model.name,
        base_model=row.base_model.name,
        adapter_version=version.number if version is not None else None,
        key=row.key.public_id,
        member=str(member.public_id) if member is not None else None,
        admitted_at=row.admitted_at,
        ended_at=ended,
        # Not below 0 where the clock was set back between the two.
        duration_ms=None if ended is None else max(round((ended - row.admitted_at).total_seconds() * 1000), 0),
        first_token_ms=row.first_token_ms,
        queue_ms=row.queue_ms,
        prefill_ms=row.prefill_ms,
        emitted_tokens=row.emitted_tokens,
        held=Held(prompt_tokens=row.prompt_tokens, max_tokens=row.max_tokens, cost=row.held_cost),
        billed=None if entry is None else Billed.from_orm(entry),
        price=None if price is None else PriceAtAdmission.from_orm(price),
        finish_reason=entry.finish_reason or None if entry is not None else None,
    )
