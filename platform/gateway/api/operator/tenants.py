from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from django.http import HttpRequest
from ninja import Query, Schema
from pydantic import ConfigDict, Field

from gateway.api.callers import OperatorBearer, operator
from gateway.api.mutations import Body, management_router
from gateway.api.operator.limits import LimitsBody
from gateway.api.pages import Page, Wanted, page
from gateway.api.text import Text
from tenants import base_models, plans, provisioning, roster
from tenants.limits import names_for
from tenants.models import Tenant
from tenants.standing import standing

router = management_router("operators: tenants", OperatorBearer())


class TenantSummary(Schema):
    """``limits`` are those in force, ``own_limits`` the tenant's own; the rest are its plan's. ``null``: no limit.

    ``month_tokens`` and ``month_cost`` (micro-units): this month's (UTC), what running requests hold included.
    """

    slug: str
    display_name: str
    state: Literal["active", "suspended"]
    plan: str
    weight: int
    created_at: datetime
    limits: dict[str, int | None]
    own_limits: dict[str, int | None]
    month_tokens: int
    month_cost: int
    running: int


class LimitNow(Schema):
    limit: int
    used: int | None = None
    left: int | None = None


class TenantDetail(TenantSummary):
    """``remaining``: every limit in force that can be used up, how much is used and left now. ``keys``: those that
    work.
    """

    remaining: dict[str, LimitNow]
    models: list[str]
    adapters: int
    keys: int
    members: int


class NewTenant(Body):
    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "slug": "acme",
                "display_name": "Acme Ltd",
                "plan": "standard",
                "limits": {"requests_per_minute": 60},
                "models": ["smollm2-135m-instruct"],
            }
        }
    )

    slug: Text = Field(max_length=63, description="the part before / in its models' names; it never changes")
    display_name: Text = Field("", max_length=200, description="name for people; the slug if left out")
    plan: Text | None = Field(None, max_length=63, description="the standard plan if left out")
    weight: int = Field(1, ge=1, le=32767, description="share of a busy worker, against other tenants")
    limits: LimitsBody | None = None
    models: list[Text] | None = Field(
        None, max_length=100, description="base models it may use; the first registered one if left out"
    )


class TenantChange(Body):
    """What is named changes."""

    model_config = ConfigDict(json_schema_extra={"example": {"plan": "large", "limits": {"tokens_per_day": None}}})

    display_name: Text | None = Field(None, min_length=1, max_length=200)
    plan: Text | None = Field(None, max_length=63)
    weight: int | None = Field(None, ge=1, le=32767)
    limits: LimitsBody | None = None


class Reason(Body):
    model_config = ConfigDict(json_schema_extra={"example": {"reason": "invoice 2031-07 unpaid"}})

    reason: Text = Field("", max_length=500, description="for the audit log")


NO_REASON = Reason(reason="")


class TenantFilter(Schema):
    state: Literal["active", "suspended"] | None = None
    plan: Text | None = Field(None, max_length=63)
    search: Text | None = Field(None, max_length=100, description="part of the slug or of the display name")


def _summary(tenant: Any) -> dict[str, Any]:
    own = {name: getattr(tenant, name) for name in names_for(Tenant)}
    return {
        "slug": tenant.slug,
        "display_name": tenant.display_name,
        "state": tenant.state,
        "plan": tenant.plan.name,
        "weight": tenant.weight,
        "created_at": tenant.created_at,
        "limits": {name: getattr(tenant.plan, name) if value is None else value for name, value in own.items()},
        "own_limits": own,
        "month_tokens": tenant.month_tokens,
        "month_cost": tenant.month_cost,
        "running": tenant.running,
    }


def _detail(slug: str) -> TenantDetail:
    tenant = provisioning.find(slug)
    row = roster.rows().get(pk=tenant.pk)
    (now, *_) = standing(tenant)
    return TenantDetail(
        **_summary(row),
        remaining={name: LimitNow(**at) for name, at in now["limits"].items() if "left" in at},
        models=list(tenant.model_allowances.order_by("base_model__name").values_list("base_model__name", flat=True)),
        adapters=tenant.adapters.count(),
        keys=tenant.api_keys.working().count(),
        members=tenant.members.count(),
    )


@router.get("/api/operator/tenants", response=Page[TenantSummary], summary="All tenants, by their short names")
def list_tenants(request: HttpRequest, window: Wanted, wanted: Query[TenantFilter]) -> dict[str, Any]:
    rows = roster.rows(state=wanted.state, plan=wanted.plan, search=wanted.search)
    return page(rows, window, _summary, name="slug", order="slug")


@router.post("/api/operator/tenants", response={201: TenantDetail}, summary="Create a tenant")
def create_tenant(request: HttpRequest, body: NewTenant) -> tuple[int, TenantDetail]:
    provisioning.create(
        operator(request).actor,
        body.slug,
        display_name=body.display_name,
        plan=None if body.plan is None else plans.find(body.plan, "plan"),
        weight=body.weight,
        limits=body.limits.changes() if body.limits else None,
        base_models=None if body.models is None else [base_models.find(name, "models") for name in body.models],
    )
    return 201, _detail(body.slug)


@router.get(
    "/api/operator/tenants/{tenant}", response=TenantDetail, summary="One tenant, and what is left of its limits"
)
def get_tenant(request: HttpRequest, tenant: str) -> TenantDetail:
    return _detail(tenant)


@router.patch(
    "/api/operator/tenants/{tenant}", response=TenantDetail, summary="Change a tenant's name, plan, weight or limits"
)
def change_tenant(request: HttpRequest, tenant: str, body: TenantChange) -> TenantDetail:
    provisioning.change(
        operator(request).actor,
        provisioning.find(tenant),
        display_name=body.display_name,
        plan=None if body.plan is None else plans.find(body.plan, "plan"),
        weight=body.weight,
        limits=body.limits.changes() if body.limits else None,
    )
    return _detail(tenant)


@router.post(
    "/api/operator/tenants/{tenant}/suspend",
    response=TenantDetail,
    summary="Refuse a tenant's requests, and stop those that run within seconds",
)
def suspend_tenant(request: HttpRequest, tenant: str, body: Reason = NO_REASON) -> TenantDetail:
    provisioning.suspend(operator(request).actor, provisioning.find(tenant), body.reason)
    return _detail(tenant)


@router.post("/api/operator/tenants/{tenant}/resume", response=TenantDetail, summary="Take its requests again")
def resume_tenant(request: HttpRequest, tenant: str, body: Reason = NO_REASON) -> TenantDetail:
    provisioning.resume(operator(request).actor, provisioning.find(tenant), body.reason)
    return _detail(tenant)


@router.delete(
    "/api/operator/tenants/{tenant}", response={204: None}, summary="Delete a tenant that never made a request"
)
def delete_tenant(request: HttpRequest, tenant: str) -> tuple[int, None]:
    provisioning.delete(operator(request).actor, provisioning.find(tenant))
    return 204, None
