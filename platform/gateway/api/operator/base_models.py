from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from django.http import HttpRequest
from ninja import Schema
from pydantic import ConfigDict

from fleet import served_models
from gateway.api.callers import OperatorBearer, operator
from gateway.api.mutations import Body, management_router
from gateway.api.pages import Page, Wanted, page
from tenants import base_models

router = management_router("operators: models", OperatorBearer())


class BaseModelObject(Schema):
    """``tenants``: how many may use it. ``workers``: that are registered for it. ``adapters``: made for it."""

    name: str
    state: Literal["active", "retired"]
    fingerprint: str
    directory: str
    context_length: int
    created_at: datetime
    tenants: int
    workers: int
    adapters: int


class StateChange(Body):
    model_config = ConfigDict(json_schema_extra={"example": {"state": "retired"}})

    state: Literal["active", "retired"]


def _shown(model: Any) -> BaseModelObject:
    return BaseModelObject(
        name=model.name,
        state=model.state,
        fingerprint=model.fingerprint,
        directory=model.directory,
        context_length=model.context_length,
        created_at=model.created_at,
        tenants=model.tenants,
        workers=model.worker_count,
        adapters=model.adapter_count,
    )


@router.get("/api/operator/models", response=Page[BaseModelObject], summary="All base models, by name")
def list_models(request: HttpRequest, window: Wanted) -> dict[str, Any]:
    return page(served_models.rows(), window, _shown, name="name", order="name")


@router.get("/api/operator/models/{name}", response=BaseModelObject, summary="One base model")
def get_model(request: HttpRequest, name: str) -> BaseModelObject:
    return _shown(served_models.rows().get(pk=base_models.find(name).pk))


@router.patch(
    "/api/operator/models/{name}", response=BaseModelObject, summary="Retire a base model, or take it up again"
)
def change_model(request: HttpRequest, name: str, body: StateChange) -> BaseModelObject:
    model = base_models.find(name)
    base_models.set_state(operator(request).actor, model, body.state)
    return _shown(served_models.rows().get(pk=model.pk))
