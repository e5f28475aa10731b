from __future__ import annotations

from typing import Any

from django.db.models import Count
from django.http import HttpRequest
from ninja import Schema
from pydantic import ConfigDict, Field

from gateway.api.callers import OperatorBearer, operator
from gateway.api.mutations import Body, management_router
from gateway.api.operator.limits import LimitsBody
from gateway.api.pages import Page, Wanted, page
from gateway.api.text import Text
from tenants import plans
from tenants.limits import names_for
from tenants.models import Plan

router = management_router("operators: plans", OperatorBearer())

_EXAMPLE: dict[str, Any] = {"requests_per_minute": 60, "tokens_per_month": 5000000}


class PlanObject(Schema):
    """``tenants``: how many are on it; its limits hold where they have none of their own. ``null``: no limit."""

    name: str
    limits: dict[str, int | None]
    tenants: int


class NewPlan(Body):
    model_config = ConfigDict(json_schema_extra={"example": {"name": "small", "limits": _EXAMPLE}})

    name: Text = Field(max_length=63, description="letters, digits, hyphens, underscores")
    limits: LimitsBody | None = None


class PlanChange(Body):
    model_config = ConfigDict(json_schema_extra={"example": {"limits": _EXAMPLE}})

    limits: LimitsBody


def _shown(plan: Any) -> PlanObject:
    limits = {name: getattr(plan, name) for name in names_for(Plan)}
    count = plan.count if hasattr(plan, "count") else plan.tenants.count()
    return PlanObject(name=plan.name, limits=limits, tenants=count)


@router.get("/api/operator/plans", response=Page[PlanObject], summary="All plans, by name")
def list_plans(request: HttpRequest, window: Wanted) -> dict[str, Any]:
    return page(Plan.objects.annotate(count=Count("tenants")), window, _shown, name="name", order="name")


@router.post("/api/operator/plans", response={201: PlanObject}, summary="Make a plan")
def create_plan(request: HttpRequest, body: NewPlan) -> tuple[int, PlanObject]:
    return 201, _shown(plans.create(operator(request).actor, body.name, body.limits.changes() if body.limits else {}))


@router.get("/api/operator/plans/{name}", response=PlanObject, summary="One plan")
def get_plan(request: HttpRequest, name: str) -> PlanObject:
    return _shown(plans.find(name))


@router.patch(
    "/api/operator/plans/{name}", response=PlanObject, summary="Change a plan's limits, from the next request on"
)
def change_plan(request: HttpRequest, name: str, body: PlanChange) -> PlanObject:
    plan = plans.find(name)
    plans.change(operator(request).actor, plan, body.limits.changes())
    return _shown(plan)


@router.delete("/api/operator/plans/{name}", response={204: None}, summary="Delete a plan without tenants and prices")
def delete_plan(request: HttpRequest, name: str) -> tuple[int, None]:
    plans.delete(operator(request).actor, plans.find(name))
    return 204, None
