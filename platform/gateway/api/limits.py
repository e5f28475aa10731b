from __future__ import annotations

from typing import Annotated, Any, Literal
from uuid import UUID

from django.http import HttpRequest
from ninja import Query, Schema
from pydantic import Field

from gateway.api.callers import TenantKey, caller
from gateway.api.mutations import management_router
from gateway.errors import bad_request
from tenants import key_ring
from tenants.callers import Caller
from tenants.errors import NotFound
from tenants.models import ApiKey, Member, Tenant
from tenants.standing import standing

router = management_router("limits", TenantKey())

Kind = Literal["tenant", "member", "key"]


class Limit(Schema):
    """``used`` and ``left`` are null for the limits of a single request. What is refilled per minute counts as used
    until it is.
    """

    limit: int
    used: int | None = None
    left: int | None = None


class Subject(Schema):
    """Whose limits. All of them hold for a request of the key; the tightest decides."""

    subject: Kind
    id: str = Field(description="The account's short name, the member's or the key's id")
    limits: dict[str, Limit]
    month_tokens: int = Field(description="Of this month (UTC), with what running requests hold")
    month_cost: int = Field(description="The same in micro-units")
    held_tokens: int = Field(description="Of running requests")
    held_cost: int


class Standing(Schema):
    tenant: str
    data: list[Subject]


class Asked(Schema):
    key: Annotated[str | None, Field(max_length=64, description="Id of a key: the account, its member and the key")] = (
        None
    )
    member: Annotated[UUID | None, Field(description="Id of a member: the account and the member")] = None


@router.get("/api/limits", response=Standing, summary="The limits in force: what is used and what is left now")
def get_limits(request: HttpRequest, asked: Query[Asked]) -> Standing:
    """Of the account; with ``key`` or ``member`` those as well, as far as they have limits of their own. A key that
    you may not see under `/api/keys` is none here either."""
    asking = caller(request)
    tenant = asking.tenant
    if asked.key is not None and asked.member is not None:
        raise bad_request("Ask for a key or for a member.", "member")
    key = None if asked.key is None else _key(asking, asked.key)
    member = key.member if key is not None else None if asked.member is None else _member(tenant, asked.member)
    ids = {
        "tenant": tenant.slug,
        "member": str(member.public_id) if member is not None else "",
        "key": key.public_id if key is not None else "",
    }
    return Standing(tenant=tenant.slug, data=[_subject(row, ids) for row in standing(tenant, member, key)])


def _key(asking: Caller, public_id: str) -> ApiKey:
    try:
        return key_ring.find(asking, public_id)
    except NotFound:
        raise NotFound("key", public_id, "key") from None


def _member(tenant: Tenant, public_id: UUID) -> Member:
    member: Member | None = Member.objects.filter(tenant=tenant, public_id=public_id).first()
    if member is None:
        raise NotFound("member", str(public_id), "member")
    return member


def _subject(row: dict[str, Any], ids: dict[str, str]) -> Subject:
    kind = row["subject"].partition(":")[0]
    sums = ("month_tokens", "month_cost", "held_tokens", "held_cost")
    limits = {name: Limit(**limit) for name, limit in row["limits"].items()}
    return Subject(subject=kind, id=ids[kind], limits=limits, **{name: row[name] for name in sums})
