from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from django.http import HttpRequest
from ninja import Schema
from pydantic import ConfigDict, Field

from gateway.api.callers import caller
from gateway.api.mutations import Body, management_router
from gateway.api.openai_keys import AnyKey
from gateway.api.pages import Page, Wanted, page
from gateway.api.text import Text
from gateway.batches.queue import wake
from tenants import batches
from tenants.actors import Actor
from tenants.files import LONGEST, SHORTEST
from tenants.models import ApiKey
from tenants.models import Batch as BatchRow

router = management_router("batches", AnyKey())

Metadata = dict[str, str]
Status = Literal["validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"]


class BatchError(Schema):
    """What is wrong with the input, and where. ``line`` counts from 1; ``param`` is a field of the line."""

    code: str | None
    line: int | None
    message: str
    param: str | None


class BatchErrors(Schema):
    object: Literal["list"] = "list"
    data: list[BatchError]


class Counts(Schema):
    total: int
    completed: int
    failed: int


class InputDetails(Schema):
    cached_tokens: int


class OutputDetails(Schema):
    reasoning_tokens: int = 0


class BatchUsage(Schema):
    """Tokens of all answers in the output file: what the batch was charged for."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class Batch(Schema):
    """Requests of a file, answered when there is room. Times are Unix seconds."""

    id: str
    object: Literal["batch"] = "batch"
    endpoint: str
    errors: BatchErrors | None
    input_file_id: str
    completion_window: str
    status: Status
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: Counts
    usage: BatchUsage
    metadata: Metadata


class OutputExpiry(Body):
    anchor: Literal["created_at"]
    seconds: Annotated[int, Field(ge=SHORTEST, le=LONGEST)]


class BatchCreate(Body):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "input_file_id": "file-01890000000070008000000000000000",
                    "endpoint": "/v1/chat/completions",
                    "completion_window": "24h",
                    "metadata": {"run": "nightly"},
                }
            ]
        }
    )

    input_file_id: Annotated[Text, Field(max_length=64, description="A file of purpose `batch`.")]
    endpoint: Annotated[
        Literal["/v1/chat/completions", "/v1/completions"], Field(description="As in the `url` of every line.")
    ]
    completion_window: Annotated[Literal["24h"], Field(description="What is not done by then, expires.")]
    metadata: Annotated[Metadata | None, Field(description="Up to 16 texts, shown with the batch.")] = None
    output_expires_after: Annotated[
        OutputExpiry | None, Field(description="How long its output files are kept; 30 days otherwise.")
    ] = None


def shown(batch: BatchRow) -> Batch:
    times: dict[str, Any] = {
        name: _seconds(getattr(batch, name))
        for name in (
            "created_at", "in_progress_at", "expires_at", "finalizing_at", "completed_at", "failed_at", "expired_at",
            "cancelling_at", "cancelled_at",
        )
    }  # fmt: skip
    same: tuple[str, ...] = (
        "endpoint",
        "input_file_id",
        "completion_window",
        "status",
        "output_file_id",
        "error_file_id",
        "metadata",
    )
    return Batch(
        id=batch.pk,
        errors=BatchErrors(data=[BatchError(**error) for error in batch.errors]) if batch.errors else None,
        request_counts=Counts(total=batch.total, completed=batch.completed, failed=batch.failed),
        usage=BatchUsage(
            input_tokens=batch.prompt_tokens,
            input_tokens_details=InputDetails(cached_tokens=batch.cached_tokens),
            output_tokens=batch.completion_tokens,
            output_tokens_details=OutputDetails(),
            total_tokens=batch.prompt_tokens + batch.completion_tokens,
        ),
        **times,
        **{name: getattr(batch, name) for name in same},
    )


def _seconds(moment: datetime | None) -> int | None:
    return None if moment is None else int(moment.timestamp())


@router.post("/v1/batches", response=Batch, summary="Answer the requests of a file, within a day")
def create_batch(request: HttpRequest, body: BatchCreate) -> Batch:
    who = caller(request)
    assert who.key is not None, "AnyKey is a key"
    return shown(create(who.actor, who.key, body))


def create(actor: Actor, key: ApiKey, body: BatchCreate) -> BatchRow:
    """What the body asks for, under ``key``. Raises as :func:`~tenants.batches.create`."""
    expiry = body.output_expires_after
    batch = batches.create(
        actor,
        key,
        input_file_id=body.input_file_id,
        endpoint=body.endpoint,
        metadata=body.metadata,
        output_seconds=None if expiry is None else expiry.seconds,
    )
    wake()
    return batch


@router.get("/v1/batches", response=Page[Batch], summary="The account's batches, newest first")
def list_batches(request: HttpRequest, window: Wanted) -> dict[str, Any]:
    return page(BatchRow.objects.filter(tenant=caller(request).tenant), window, shown, name="pk")


@router.get("/v1/batches/{batch_id}", response=Batch, summary="One batch")
def get_batch(request: HttpRequest, batch_id: str) -> Batch:
    return shown(batches.find(caller(request).tenant, batch_id))


@router.post("/v1/batches/{batch_id}/cancel", response=Batch, summary="Stop a batch and deliver what is done")
def cancel_batch(request: HttpRequest, batch_id: str) -> Batch:
    """Owners cancel any batch of the account, developers those of their own keys."""
    who = caller(request)
    batches.require_own(who, batch_id)
    batch = batches.cancel(who.actor, who.tenant, batch_id)
    wake()
    return shown(batch)
