from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from django.http import HttpRequest
from ninja import Path, Schema
from pydantic import ConfigDict, Field

from gateway.api.callers import TenantKey, caller
from gateway.api.mutations import Body, management_router
from gateway.api.pages import Page, Wanted, page
from tenants import activation, adapters, releases
from tenants.callers import Role
from tenants.models import Adapter as AdapterRow
from tenants.models import Release as Row

router = management_router("releases", TenantKey())
CHANGING = TenantKey(Role.DEVELOPER)

Number = Annotated[int, Path(..., ge=1, lt=1 << 31)]
VersionNumber = Annotated[int, Field(ge=1, lt=1 << 31)]


class Release(Schema):
    """What an adapter's name stood for, from `made_at` until the next release."""

    number: int
    object: Literal["adapter.release"] = "adapter.release"
    kind: str = Field(description="`automatic`, `promote`, `canary` or `rollback`.")
    version: int = Field(description="The version that answers.")
    canary: int | None = Field(description="The version that answers `canary_percent` of the requests.")
    canary_percent: int
    made_by: str
    made_at: datetime


class Promotion(Body):
    model_config = ConfigDict(json_schema_extra={"examples": [{"version": 3}]})

    version: Annotated[VersionNumber | None, Field(description="null: the canary, which so becomes everybody's.")] = (
        None
    )


THE_CANARY = Promotion()


class Canary(Body):
    model_config = ConfigDict(json_schema_extra={"examples": [{"version": 4, "percent": 10}]})

    version: VersionNumber
    percent: Annotated[
        int,
        Field(
            ge=0,
            le=100,
            description="Of the requests. Those of one `user` all meet the same version, others are drawn one by one. "
            "Raising it keeps whom it has; 0 ends the canary.",
        ),
    ]


class ReleasePolicy(Body):
    model_config = ConfigDict(json_schema_extra={"examples": [{"auto_promote": False}]})

    auto_promote: Annotated[
        bool,
        Field(description="Whether a new version is promoted by itself once it is ready; never while a canary runs."),
    ]


class Policy(Schema):
    adapter: str
    auto_promote: bool
    pinned: bool = Field(description="Whether the operator keeps the adapter loaded.")


class Tried(Schema):
    number: int
    object: Literal["adapter.version"] = "adapter.version"
    state: str


def _shown(row: Row) -> Release:
    return Release(
        number=row.number,
        kind=row.kind,
        version=row.version.number,
        canary=None if row.canary is None else row.canary.number,
        canary_percent=row.canary_percent,
        made_by=row.made_by,
        made_at=row.made_at,
    )


def _policy(adapter: AdapterRow) -> Policy:
    return Policy(adapter=str(adapter), auto_promote=adapter.auto_promote, pinned=adapter.pinned)


@router.get(
    "/api/adapters/{name}/releases",
    response=Page[Release],
    summary="What the adapter's name stands for, and stood for, newest first",
)
def list_releases(request: HttpRequest, name: str, window: Wanted) -> dict[str, Any]:
    rows = releases.history(adapters.find(caller(request).tenant, name))
    return page(rows, window, _shown, name="number", order="-number")


@router.post(
    "/api/adapters/{name}/promote",
    response=Release,
    auth=CHANGING,
    summary="Let the name stand for one version",
    description="Every gateway process follows within 3 seconds. A running canary ends.",
)
def promote_adapter(request: HttpRequest, name: str, body: Promotion = THE_CANARY) -> Release:
    who = caller(request)
    return _shown(releases.promote(who.actor, who.tenant, name, body.version))


@router.post(
    "/api/adapters/{name}/canary",
    response=Release,
    auth=CHANGING,
    summary="Give a share of the requests to another version",
)
def set_canary(request: HttpRequest, name: str, body: Canary) -> Release:
    who = caller(request)
    return _shown(releases.set_canary(who.actor, who.tenant, name, body.version, body.percent))


@router.post(
    "/api/adapters/{name}/rollback",
    response=Release,
    auth=CHANGING,
    summary="Go back to the release before",
    description="From a canary to the version that ran beside it, else to what was promoted before; again, further.",
)
def rollback_adapter(request: HttpRequest, name: str) -> Release:
    who = caller(request)
    return _shown(releases.rollback(who.actor, who.tenant, name))


@router.get("/api/adapters/{name}/release-policy", response=Policy, summary="Whether new versions are promoted")
def get_release_policy(request: HttpRequest, name: str) -> Policy:
    return _policy(adapters.find(caller(request).tenant, name))


@router.patch(
    "/api/adapters/{name}/release-policy",
    response=Policy,
    auth=CHANGING,
    summary="Say whether new versions are promoted by themselves",
)
def set_release_policy(request: HttpRequest, name: str, body: ReleasePolicy) -> Policy:
    who = caller(request)
    return _policy(releases.set_automatic(who.actor, who.tenant, name, body.auto_promote))


@router.post(
    "/api/adapters/{name}/versions/{number}/trial",
    response={202: Tried},
    auth=CHANGING,
    summary="Try a version at a worker again",
    description="One that waits for its trial, or failed it. What comes of it stands in the version's `trial`.",
)
def try_version(request: HttpRequest, name: str, number: Number) -> tuple[int, Tried]:
    who = caller(request)
    version = activation.try_again(who.actor, who.tenant, name, number)
    return 202, Tried(number=version.number, state=version.state)
