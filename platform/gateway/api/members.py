from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from django.http import HttpRequest
from ninja import Schema
from pydantic import ConfigDict, Field

from gateway.api.callers import TenantKey, caller
from gateway.api.limit_fields import LimitFields
from gateway.api.mutations import Body, management_router
from gateway.api.pages import Page, Wanted, page
from gateway.api.text import Text
from tenants import membership
from tenants.callers import Role
from tenants.limits import set_limits
from tenants.models import Member as MemberRow
from tenants.restrictions import names_of_all, restrict

router = management_router("members", TenantKey(Role.VIEWER))

RoleName = Literal["owner", "developer", "viewer"]


class Member(Schema):
    """A person's place in the account. ``limits`` hold for all keys of the member together, ``null``: none of its own;
    ``models`` are those that these keys may use, ``null``: all of the account's.
    """

    id: str
    object: Literal["member"] = "member"
    username: str
    email: str
    role: RoleName
    limits: dict[str, int | None]
    models: list[str] | None
    created_at: datetime


class MemberChange(Body):
    """What is left out stays as it is."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"role": "developer", "limits": {"tokens_per_day": 200000}}]}
    )

    role: Annotated[RoleName | None, Field(description="The account's last owner stays one.")] = None
    models: Annotated[
        list[Annotated[Text, Field(max_length=200)]] | None,
        Field(max_length=1000, description="Only these may be used; `null`: all of the account's."),
    ] = None
    limits: LimitFields | None = None


def _shown(member: MemberRow, models: list[str] | None) -> Member:
    return Member(
        id=str(member.public_id),
        username=member.user.get_username(),
        email=member.user.email,
        role=member.role,  # type: ignore[arg-type]
        limits=member.own_limits(),
        models=models,
        created_at=member.created_at,
    )


@router.get("/api/members", response=Page[Member], summary="Who belongs to the account")
def list_members(request: HttpRequest, window: Wanted) -> dict[str, Any]:
    rows = MemberRow.objects.filter(tenant=caller(request).tenant).select_related("user")
    found = page(rows, window, lambda member: member, name="public_id")
    members: list[MemberRow] = found["data"]
    return {**found, "data": [_shown(*each) for each in zip(members, names_of_all(members), strict=True)]}


@router.get("/api/members/{member_id}", response=Member, summary="One member")
def get_member(request: HttpRequest, member_id: str) -> Member:
    member = membership.find_member(caller(request).tenant, member_id)
    return _shown(member, *names_of_all([member]))


@router.patch("/api/members/{member_id}", response=Member, summary="Change a member's role, limits or models")
def change_member(request: HttpRequest, member_id: str, body: MemberChange) -> Member:
    """Owners only. All of it happens, or nothing."""
    asking = caller(request)
    asking.require(Role.OWNER)
    member = membership.find_member(asking.tenant, member_id)
    if body.role is not None:
        membership.change_role(asking.actor, member, Role(body.role))
    if "models" in body.model_fields_set:
        restrict(asking.actor, member, body.models)
    if body.limits is not None:
        set_limits(asking.actor, member, body.limits.changes())
    return _shown(member, *names_of_all([member]))


@router.delete("/api/members/{member_id}", response={204: None}, summary="Remove a member, and revoke its keys")
def remove_member(request: HttpRequest, member_id: str) -> tuple[int, None]:
    """Owners remove anybody, everybody may leave; the last owner stays. Streams of the keys end within seconds."""
    asking = caller(request)
    membership.dismiss(asking, membership.find_member(asking.tenant, member_id))
    return 204, None
