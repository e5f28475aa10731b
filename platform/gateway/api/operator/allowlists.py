from __future__ import annotations

from datetime import datetime
from typing import Any

from django.db.models import F, Value
from django.db.models.functions import Concat
from django.http import HttpRequest
from ninja import Schema

from gateway.api.callers import OperatorBearer, operator
from gateway.api.mutations import management_router
from gateway.api.pages import Page, Wanted, page
from tenants import adapters, allowlists, base_models, provisioning
from tenants.models import AdapterAllowance, ModelAllowance

router = management_router("operators: tenants", OperatorBearer())


class Allowed(Schema):
    """A base model, or ``owner/name`` of another tenant's adapter."""

    model: str
    allowed_at: datetime


def _model(row: Any) -> Allowed:
    return Allowed(model=row.base_model.name, allowed_at=row.created_at)


def _adapter(row: Any) -> Allowed:
    return Allowed(model=str(row.adapter), allowed_at=row.created_at)


@router.get(
    "/api/operator/tenants/{tenant}/models", response=Page[Allowed], summary="Base models that a tenant may use"
)
def list_allowed_models(request: HttpRequest, tenant: str, window: Wanted) -> dict[str, Any]:
    rows = ModelAllowance.objects.filter(tenant=provisioning.find(tenant)).select_related("base_model")
    return page(rows.annotate(name=F("base_model__name")), window, _model, name="name", order="name")


@router.put("/api/operator/tenants/{tenant}/models/{name}", response=Allowed, summary="Let a tenant use a base model")
def allow_model(request: HttpRequest, tenant: str, name: str) -> Allowed:
    found, model = provisioning.find(tenant), base_models.find(name)
    allowlists.allow_model(operator(request).actor, found, model)
    return _model(ModelAllowance.objects.select_related("base_model").get(tenant=found, base_model=model))


@router.delete(
    "/api/operator/tenants/{tenant}/models/{name}", response={204: None}, summary="Take a base model from a tenant"
)
def forbid_model(request: HttpRequest, tenant: str, name: str) -> tuple[int, None]:
    allowlists.forbid_model(operator(request).actor, provisioning.find(tenant), base_models.find(name))
    return 204, None


@router.get(
    "/api/operator/tenants/{tenant}/allowed-adapters",
    response=Page[Allowed],
    summary="Other tenants' adapters that a tenant may use",
)
def list_allowed_adapters(request: HttpRequest, tenant: str, window: Wanted) -> dict[str, Any]:
    rows = AdapterAllowance.objects.filter(tenant=provisioning.find(tenant), adapter__deleted_at=None)
    rows = rows.select_related("adapter__tenant").annotate(
        name=Concat("adapter__tenant__slug", Value("/"), "adapter__name")
    )
    return page(rows, window, _adapter, name="name", order="name")


@router.put(
    "/api/operator/tenants/{tenant}/allowed-adapters/{owner}/{name}",
    response=Allowed,
    summary="Let a tenant use another one's adapter",
)
def allow_adapter(request: HttpRequest, tenant: str, owner: str, name: str) -> Allowed:
    found, adapter = provisioning.find(tenant), adapters.named(f"{owner}/{name}")
    allowlists.allow_adapter(operator(request).actor, found, adapter)
    rows = AdapterAllowance.objects.select_related("adapter__tenant")
    return _adapter(rows.get(tenant=found, adapter=adapter))


@router.delete(
    "/api/operator/tenants/{tenant}/allowed-adapters/{owner}/{name}",
    response={204: None},
    summary="Take another tenant's adapter from a tenant",
)
def forbid_adapter(request: HttpRequest, tenant: str, owner: str, name: str) -> tuple[int, None]:
    allowlists.forbid_adapter(operator(request).actor, provisioning.find(tenant), adapters.named(f"{owner}/{name}"))
    return 204, None
