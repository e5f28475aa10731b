from __future__ import annotations

from typing import Annotated, Literal

from django.http import HttpRequest
from ninja import Path, Schema
from pydantic import ConfigDict, Field

from fleet import residency
from gateway.api.callers import OperatorBearer, operator
from gateway.api.mutations import Body, management_router
from gateway.api.text import Text
from tenants import activation, provisioning, releases

router = management_router("operators: residency", OperatorBearer())

Number = Annotated[int, Path(..., ge=1, lt=1 << 31)]


class Resident(Schema):
    """``adapters``: every version of that content, of whichever tenant; none: an operator loaded it by hand."""

    digest: str
    adapters: list[str]
    why: Literal["pinned", "canary", "recent", "used", "gone", "no slot"]


class WorkerResidency(Schema):
    """``missing``: will be loaded within seconds. ``left_out``: pinned adapters that found no slot."""

    worker: str
    base_model: str
    problem: str | None
    slots: int | None
    resident: list[Resident]
    missing: list[Resident]
    left_out: list[Resident]


class Residency(Schema):
    object: Literal["list"] = "list"
    data: list[WorkerResidency]


class Pin(Body):
    model_config = ConfigDict(json_schema_extra={"examples": [{"pinned": True}]})

    pinned: bool = Field(description="Keep it loaded on every worker of its base model, as far as their slots go.")


class Pinned(Schema):
    adapter: str
    pinned: bool


class Waiver(Body):
    model_config = ConfigDict(json_schema_extra={"examples": [{"reason": "it changes the style only; tried by hand"}]})

    reason: Text = Field(min_length=1, max_length=500, description="for the audit log")


class Waived(Schema):
    adapter: str
    number: int
    state: str


@router.get(
    "/api/operator/residency",
    response=Residency,
    summary="Which adapters lie on which workers, and which should",
)
def get_residency(request: HttpRequest) -> Residency:
    return Residency(data=[WorkerResidency(**row) for row in residency.residency()])


@router.put(
    "/api/operator/tenants/{tenant}/adapters/{name}/pin",
    response=Pinned,
    summary="Keep an adapter loaded, or no longer",
)
def pin_adapter(request: HttpRequest, tenant: str, name: str, body: Pin) -> Pinned:
    adapter = releases.set_pinned(operator(request).actor, provisioning.find(tenant), name, body.pinned)
    return Pinned(adapter=str(adapter), pinned=adapter.pinned)


@router.post(
    "/api/operator/tenants/{tenant}/adapters/{name}/versions/{number}/waiver",
    response=Waived,
    summary="Let a version through that waits for its trial, or failed it",
)
def waive_version(request: HttpRequest, tenant: str, name: str, number: Number, body: Waiver) -> Waived:
    version = activation.waive(operator(request).actor, provisioning.find(tenant), name, number, body.reason)
    return Waived(adapter=str(version.adapter), number=version.number, state=version.state)
