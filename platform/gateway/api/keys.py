from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, Any, Literal

from django.http import HttpRequest
from ninja import Schema
from pydantic import ConfigDict, Field

from gateway.api.callers import TenantKey, caller
from gateway.api.limit_fields import LimitFields
from gateway.api.moments import Moment
from gateway.api.mutations import ONCE, Body, management_router
from gateway.api.pages import Page, Wanted, page
from gateway.api.text import Text
from tenants import key_ring, membership
from tenants.addresses import MOST as MOST_NETWORKS
from tenants.callers import Caller, Role
from tenants.models import ApiKey
from tenants.models import Member as MemberRow
from tenants.restrictions import names_of_all

router = management_router("keys", TenantKey(Role.VIEWER))


Name = Annotated[Text, Field(max_length=100)]
Models = Annotated[
    list[Annotated[Text, Field(max_length=200)]] | None,
    Field(max_length=1000, description="Only these may be used; `null`: all that the account or the member may."),
]
Addresses = Annotated[
    list[Annotated[str, Field(max_length=50)]] | None,
    Field(
        min_length=1,
        max_length=MOST_NETWORKS,
        description="Addresses or networks from which alone the key may be used; `null`: from anywhere.",
    ),
]
Expiry = Annotated[Moment | None, Field(description="`null`: never.")]


class Key(Schema):
    """A key without its secret. Keys that came of one another by rotation share ``limits``, ``models``, ``addresses``
    and what they have used.
    """

    id: str
    object: Literal["api_key"] = "api_key"
    name: str
    scope: Literal["inference", "manage"]
    state: Literal["active", "expired", "revoked"]
    member: str | None = Field(description="Id of the member whose key it is; null: the account's own.")
    models: list[str] | None
    addresses: list[str] | None
    limits: dict[str, int | None]
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None = Field(description="To the minute.")
    predecessor: str | None = Field(description="Id of the key that this one follows by rotation.")
    successor: str | None


class NewKey(Key):
    """``api_key`` is the key itself: shown now, stored nowhere."""

    api_key: str | None = Field(json_schema_extra=ONCE)


class KeyIssue(Body):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "name": "batch machine",
                    "expires_at": "2030-01-31T00:00:00Z",
                    "models": ["acme/pirate"],
                    "addresses": ["203.0.113.0/24", "2001:db8::/32"],
                    "limits": {"tokens_per_day": 200000},
                }
            ]
        }
    )

    name: Name = ""
    scope: Annotated[
        Literal["inference", "manage"],
        Field(description="`inference` generates text, `manage` opens this API. No key does both."),
    ] = "inference"
    member: Annotated[
        str | None,
        Field(
            max_length=100, description="Id of the member whose key it becomes. Default: yourself, for an owner none."
        ),
    ] = None
    expires_at: Expiry = None
    models: Models = None
    addresses: Addresses = None
    limits: LimitFields | None = None


PLAIN = KeyIssue()


class KeyChange(Body):
    """What is left out stays as it is."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"name": "ci", "limits": {"max_concurrent": 4}}]})

    name: Name = ""
    expires_at: Expiry = None
    models: Models = None
    addresses: Addresses = None
    limits: LimitFields | None = None


class KeyRotation(Body):
    model_config = ConfigDict(json_schema_extra={"examples": [{"overlap_seconds": 3600}]})

    overlap_seconds: Annotated[
        int,
        Field(
            ge=0,
            le=int(key_ring.MOST_OVERLAP.total_seconds()),
            description="How long the old key still works; 0 revokes it at once.",
        ),
    ] = int(key_ring.OVERLAP.total_seconds())
    expires_at: Annotated[
        Moment | None,
        Field(description="The new key's end. Default: it lives as long from now as the old one was given."),
    ] = None


AS_USUAL = KeyRotation()


def _fields(key: ApiKey, models: list[str] | None) -> dict[str, Any]:
    successor: ApiKey | None = getattr(key, "successor", None)
    return {
        "id": key.public_id,
        "name": key.name,
        "scope": key.scope,
        "state": key.state,
        "member": None if key.member is None else str(key.member.public_id),
        "models": models,
        "addresses": key.allowed_addresses,
        "limits": key.own_limits(),
        "created_at": key.created_at,
        "expires_at": key.expires_at,
        "revoked_at": key.revoked_at,
        "last_used_at": key.last_used_at,
        "predecessor": None if key.predecessor is None else key.predecessor.public_id,
        "successor": None if successor is None else successor.public_id,
    }


def _shown(asking: Caller, key_id: str) -> Key:
    key = key_ring.find(asking, key_id)
    return Key(**_fields(key, names_of_all([key])[0]))


def _made(asking: Caller, public_id: str, api_key: str) -> tuple[int, NewKey]:
    key = key_ring.find(asking, public_id)
    return 201, NewKey(**_fields(key, names_of_all([key])[0]), api_key=api_key)


def _member(asking: Caller, member_id: str | None) -> MemberRow | None:
    if member_id is not None:
        return membership.find_member(asking.tenant, member_id, "member")
    return None if asking.role == Role.OWNER else asking.member


@router.get("/api/keys", response=Page[Key], summary="The account's keys, newest first; yours, unless you are an owner")
def list_keys(
    request: HttpRequest,
    window: Wanted,
    scope: Literal["inference", "manage"] | None = None,
    member: Annotated[str, Field(max_length=100)] | None = None,
) -> dict[str, Any]:
    rows = key_ring.reachable(caller(request))
    if scope is not None:
        rows = rows.filter(scope=scope)
    if member is not None:
        rows = rows.filter(member=membership.find_member(caller(request).tenant, member))
    found = page(rows, window, lambda key: key, name="public_id")
    keys: list[ApiKey] = found["data"]
    return {**found, "data": [Key(**_fields(key, names)) for key, names in zip(keys, names_of_all(keys), strict=True)]}


@router.get("/api/keys/{key_id}", response=Key, summary="One key")
def get_key(request: HttpRequest, key_id: str) -> Key:
    return _shown(caller(request), key_id)


@router.post("/api/keys", response={201: NewKey}, summary="Issue a key; its text is shown once")
def issue_key(request: HttpRequest, body: KeyIssue = PLAIN) -> tuple[int, NewKey]:
    """Developers issue keys for themselves, owners for any member and for the account as a whole. A key of a member of
    scope `manage` has the member's role.
    """
    asking = caller(request)
    wanted = key_ring.Wanted(
        name=body.name,
        scope=body.scope,
        member=_member(asking, body.member),
        expires_at=body.expires_at,
        models=body.models,
        networks=body.addresses,
        limits={} if body.limits is None else body.limits.changes(),
    )
    key, secret = key_ring.issue(asking, wanted)
    return _made(asking, key.public_id, secret.reveal())


@router.patch("/api/keys/{key_id}", response=Key, summary="Change a key's name, end, restrictions or limits")
def change_key(request: HttpRequest, key_id: str, body: KeyChange) -> Key:
    """All of it happens, or nothing. Restrictions and limits hold for all keys that this one shares them with. What is
    narrowed ends running requests that it no longer allows, within 5 seconds.
    """
    asking = caller(request)
    changes: dict[str, Any] = {
        name: getattr(body, name) for name in ("name", "expires_at", "models") if name in body.model_fields_set
    }
    if "addresses" in body.model_fields_set:
        changes["networks"] = body.addresses
    if body.limits is not None:
        changes["limits"] = body.limits.changes()
    key_ring.change(asking, key_ring.find(asking, key_id), **changes)
    return _shown(asking, key_id)


@router.post("/api/keys/{key_id}/rotate", response={201: NewKey}, summary="Issue a key's successor")
def rotate_key(request: HttpRequest, key_id: str, body: KeyRotation = AS_USUAL) -> tuple[int, NewKey]:
    """The successor has the old key's limits and restrictions, and both share their counters: rotating gives nobody
    more. The old key goes on working for `overlap_seconds`.
    """
    asking = caller(request)
    key, secret = key_ring.rotate(
        asking,
        key_ring.find(asking, key_id),
        overlap=timedelta(seconds=body.overlap_seconds),
        expires_at=body.expires_at,
    )
    return _made(asking, key.public_id, secret.reveal())


@router.post("/api/keys/{key_id}/revoke", response=Key, summary="Revoke a key")
def revoke_key(request: HttpRequest, key_id: str) -> Key:
    """New requests are refused at once; running ones and sockets end within 5 seconds. Predecessors and successors
    stay, and the revoked key stays in the list.
    """
    asking = caller(request)
    key_ring.revoke(asking, key_ring.find(asking, key_id))
    return _shown(asking, key_id)
