"""Everybody's batches; and a tenant's, as its own people have them at ``/v1/batches``."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest
from ninja import Query, Schema
from pydantic import ConfigDict, Field

from gateway.api import batches as own
from gateway.api.batches import Batch, BatchCreate, Status
from gateway.api.callers import OperatorBearer, caller
from gateway.api.mutations import management_router
from gateway.api.operator.acting import ActingOperator
from gateway.api.pages import Page, Wanted, page
from gateway.api.text import Text
from tenants import batches, provisioning
from tenants.errors import NotFound
from tenants.models import Batch as BatchRow

router = management_router("operators: batches", OperatorBearer())

_OF_ONE = "/api/operator/tenants/{tenant}/batches"


class BatchFilter(Schema):
    tenant: Text | None = Field(None, max_length=63)
    status: Status | None = None
    input_file_id: Text | None = Field(None, max_length=64)


class OperatorBatch(Batch):
    tenant: str
    key: str = Field(description="public id of the key under which it runs")


class OperatorBatchCreate(BatchCreate):
    """As the tenant's own, and under which key."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "key": "5kQz81LmNb0c",
                    "input_file_id": "file-01890000000070008000000000000000",
                    "endpoint": "/v1/chat/completions",
                    "completion_window": "24h",
                }
            ]
        }
    )

    key: Text = Field(
        max_length=32,
        description="Public id of one of the account's own keys of scope `inference`, no member's: the batch runs "
        "under its limits, restrictions and prices, and ends with it.",
    )


def _shown(batch: BatchRow) -> OperatorBatch:
    return OperatorBatch(**own.shown(batch).model_dump(), tenant=batch.tenant.slug, key=batch.key.public_id)


@router.get("/api/operator/batches", response=Page[OperatorBatch], summary="Everybody's batches, newest first")
def list_all_batches(request: HttpRequest, window: Wanted, wanted: Query[BatchFilter]) -> dict[str, Any]:
    rows = BatchRow.objects.unscoped().select_related("tenant", "key")
    if wanted.tenant is not None:
        rows = rows.filter(tenant=provisioning.find(wanted.tenant))
    named = {"status": wanted.status, "input_file_id": wanted.input_file_id}
    rows = rows.filter(**{name: value for name, value in named.items() if value is not None})
    return page(rows, window, _shown, name="pk")


@router.get(_OF_ONE, response=Page[Batch], auth=ActingOperator(), summary="A tenant's batches, newest first")
def list_batches(request: HttpRequest, tenant: str, window: Wanted) -> dict[str, Any]:
    return own.list_batches(request, window)


@router.post(_OF_ONE, response=Batch, auth=ActingOperator(), summary="Answer the requests of a tenant's file")
def create_batch(request: HttpRequest, tenant: str, body: OperatorBatchCreate) -> Batch:
    who = caller(request)
    key = batches.keys_for(who).filter(public_id=body.key).first()
    if key is None:
        raise NotFound("key", body.key, "key")
    return own.shown(own.create(who.actor, key, body))


@router.get(f"{_OF_ONE}/{{batch_id}}", response=Batch, auth=ActingOperator(), summary="One batch of a tenant")
def get_batch(request: HttpRequest, tenant: str, batch_id: str) -> Batch:
    return own.get_batch(request, batch_id)


@router.post(
    f"{_OF_ONE}/{{batch_id}}/cancel",
    response=Batch,
    auth=ActingOperator(),
    summary="Stop a tenant's batch and deliver what is done",
)
def cancel_batch(request: HttpRequest, tenant: str, batch_id: str) -> Batch:
    return own.cancel_batch(request, batch_id)
