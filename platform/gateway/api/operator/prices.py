from __future__ import annotations

from datetime import datetime
from typing import Any

from django.http import HttpRequest
from ninja import Query, Schema
from pydantic import ConfigDict, Field

from gateway.api.callers import OperatorBearer, operator
from gateway.api.moments import Moment
from gateway.api.mutations import Body, management_router
from gateway.api.pages import Page, Wanted, page
from gateway.api.text import Text
from tenants import base_models, plans, pricing

router = management_router("operators: prices", OperatorBearer())


class PriceObject(Schema):
    """Micro-units per million tokens, from ``valid_from`` on. ``plan`` ``null``: for everybody without one of theirs.

    ``in_force``: what is charged for requests admitted now.
    """

    id: str
    model: str
    plan: str | None
    input: int
    cached_input: int
    output: int
    valid_from: datetime
    in_force: bool


class NewPrice(Body):
    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "model": "smollm2-135m-instruct",
                "input": 150000,
                "cached_input": 75000,
                "output": 600000,
                "valid_from": "2031-01-01T00:00:00Z",
            }
        }
    )

    model: Text = Field(max_length=100, description="the base model, alone and under adapters")
    plan: Text | None = Field(None, max_length=63, description="only for tenants on this plan")
    input: int = Field(ge=0, le=pricing.MOST, description="micro-units per million prompt tokens")
    cached_input: int | None = Field(None, ge=0, le=pricing.MOST, description="of cached ones; as input if left out")
    output: int = Field(ge=0, le=pricing.MOST, description="micro-units per million generated tokens")
    # JSON has no type for times, so a text is what a strict field gets
    valid_from: Moment | None = Field(None, description="now if left out; never in the past")


class PriceFilter(Schema):
    model: Text | None = Field(None, max_length=100)
    plan: Text | None = Field(None, max_length=63)
    in_force: bool | None = None


def _shown(price: Any) -> PriceObject:
    return PriceObject(
        id=str(price.pk),
        model=price.base_model.name,
        plan=price.plan and price.plan.name,
        input=price.input,
        cached_input=price.cached_input,
        output=price.output,
        valid_from=price.valid_from,
        in_force=price.in_force,
    )


@router.get("/api/operator/prices", response=Page[PriceObject], summary="All prices that ever were, the last one first")
def list_prices(request: HttpRequest, window: Wanted, wanted: Query[PriceFilter]) -> dict[str, Any]:
    rows = pricing.prices()
    if wanted.model is not None:
        rows = rows.filter(base_model__name=wanted.model)
    if wanted.plan is not None:
        rows = rows.filter(plan__name=wanted.plan)
    if wanted.in_force is not None:
        rows = rows.filter(in_force=wanted.in_force)
    return page(rows, window, _shown, name="pk")


@router.post("/api/operator/prices", response={201: PriceObject}, summary="Set a price from a moment on")
def set_price(request: HttpRequest, body: NewPrice) -> tuple[int, PriceObject]:
    price = pricing.set_price(
        operator(request).actor,
        base_models.find(body.model, "model"),
        input=body.input,
        cached_input=body.cached_input,
        output=body.output,
        plan=None if body.plan is None else plans.find(body.plan, "plan"),
        valid_from=body.valid_from,
    )
    return 201, _shown(pricing.prices().get(pk=price.pk))
