from __future__ import annotations

from datetime import datetime
from typing import Annotated

from django.http import HttpRequest
from ninja import Schema
from pydantic import ConfigDict, Field

from gateway.api.callers import TenantKey, caller
from gateway.api.mutations import Body, management_router
from tenants import payloads
from tenants.callers import Role
from tenants.models import PayloadStoring

router = management_router("payloads", TenantKey())

Days = Annotated[int, Field(description=f"1 to {payloads.MOST_DAYS}")]


class NewStoring(Body):
    model_config = ConfigDict(json_schema_extra={"examples": [{"days": 7}]})

    days: Days
    operators_may_read: bool = Field(False, description="Whether the platform's operators may read them too")


class Storing(Schema):
    """Whether prompts and answers are stored; the rest is null where they are not."""

    stored: bool
    days: int | None
    operators_may_read: bool | None


class Deleted(Storing):
    deleted: int = Field(description="How many requests' prompts and answers were deleted")


class PayloadMessage(Schema):
    role: str
    content: str


class Payload(Schema):
    """What a request asked and was answered. Both are cut where ``…_characters`` is more than what is here."""

    request: str
    prompt: list[PayloadMessage]
    answers: list[str] = Field(description="One for each choice")
    prompt_characters: int
    answer_characters: int
    created_at: datetime


@router.get("/api/settings/payloads", response=Storing, summary="Whether prompts and answers are stored")
def get_storing(request: HttpRequest) -> Storing:
    return _shown(payloads.storing_of(caller(request).tenant))


@router.put(
    "/api/settings/payloads",
    response=Storing,
    auth=TenantKey(Role.OWNER),
    summary="Store prompts and answers from now on, each for some days; or change for how long",
)
def set_storing(request: HttpRequest, body: NewStoring) -> Storing:
    """Operators and keys that they issued cannot: the account's owners decide. Batches are not stored beside their
    files.
    """
    who = caller(request)
    storing = payloads.turn_on(who.actor, who.tenant, days=body.days, operators_may_read=body.operators_may_read)
    return _shown(storing)


@router.delete(
    "/api/settings/payloads",
    response=Deleted,
    auth=TenantKey(Role.OWNER),
    summary="Store nothing any more, and delete all that is stored",
)
def end_storing(request: HttpRequest) -> Deleted:
    who = caller(request)
    return Deleted(**_shown(None).model_dump(), deleted=payloads.turn_off(who.actor, who.tenant))


@router.get(
    "/api/requests/{request_id}/payload",
    response=Payload,
    auth=TenantKey(Role.DEVELOPER),
    summary="What one request asked and was answered, if that was stored",
)
def get_payload(request: HttpRequest, request_id: str) -> Payload:
    """An operator's look, or one with a key that an operator issued, needs the account's permission, and stands in its
    audit log.
    """
    who = caller(request)
    row = payloads.read(who.actor, who.tenant, request_id)
    return Payload(
        request=str(row.pk),
        prompt=row.prompt,
        answers=row.answers,
        prompt_characters=row.prompt_characters,
        answer_characters=row.answer_characters,
        created_at=row.created_at,
    )


def _shown(storing: PayloadStoring | None) -> Storing:
    if storing is None:
        return Storing(stored=False, days=None, operators_may_read=None)
    return Storing(stored=True, days=storing.days, operators_may_read=storing.operators_may_read)
