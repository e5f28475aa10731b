from __future__ import annotations

from typing import Any, Literal

from django.http import HttpRequest
from ninja import Schema
from pydantic import ConfigDict, Field

from fleet import live, registry
from fleet.models import Worker
from gateway.api.callers import OperatorBearer, operator
from gateway.api.mutations import Body, management_router
from gateway.api.pages import Page, Wanted, page
from gateway.api.text import Text
from tenants import base_models

router = management_router("operators: workers", OperatorBearer())


class Load(Schema):
    """What the worker says of itself. ``kv_usage``: share of its KV blocks in use. ``slots``: adapters that fit on the
    device; ``resident``: digests of those there now.
    """

    running: int
    waiting: int
    kv_usage: float
    kv_blocks: int | None
    slots: int | None
    resident: list[str]
    adapters_loading: int | None
    preemptions: int | None
    version: str | None
    weights: str | None


class WorkerObject(Schema):
    """``problem``: why it serves nothing now. ``load``: ``null`` where it did not answer."""

    name: str
    url: str
    model: str
    dialect: str
    state: Literal["active", "draining", "disabled"]
    problem: str | None
    load: Load | None


class WorkerBody(Body):
    model_config = ConfigDict(
        json_schema_extra={"example": {"url": "http://10.0.0.5:8100", "model": "smollm2-135m-instruct"}}
    )

    url: Text = Field(max_length=512, description="http://host:port, nothing after it")
    model: Text = Field(max_length=100, description="the base model that it serves; refused where it serves another")
    dialect: Literal["native"] = "native"
    state: Literal["active", "draining", "disabled"] = "active"


class WorkerState(Body):
    model_config = ConfigDict(json_schema_extra={"example": {"state": "draining"}})

    state: Literal["active", "draining", "disabled"] = Field(
        description="draining: finishes what it runs and gets nothing new; disabled: as if it were not there"
    )


def _shown(worker: Worker) -> WorkerObject:
    return WorkerObject(**live.described(worker, live.ask([worker])[worker.name]))


@router.get("/api/operator/workers", response=Page[WorkerObject], summary="All workers, and how each is right now")
def list_workers(request: HttpRequest, window: Wanted) -> dict[str, Any]:
    found: dict[str, Any] = page(
        Worker.objects.select_related("base_model"), window, lambda worker: worker, name="name", order="name"
    )
    now = live.ask(found["data"])
    found["data"] = [live.described(worker, now[worker.name]) for worker in found["data"]]
    return found


@router.get("/api/operator/workers/{name}", response=WorkerObject, summary="One worker, right now")
def get_worker(request: HttpRequest, name: str) -> WorkerObject:
    return _shown(registry.find(name))


@router.put(
    "/api/operator/workers/{name}",
    response={200: WorkerObject, 201: WorkerObject},
    summary="Register a worker, or change what is known of it",
)
def register_worker(request: HttpRequest, name: str, body: WorkerBody) -> tuple[int, WorkerObject]:
    done = registry.register(
        operator(request).actor,
        name,
        url=body.url,
        base_model=base_models.find(body.model, "model"),
        dialect=body.dialect,
        state=body.state,
    )
    return (201 if done.created else 200), _shown(done.worker)


@router.patch("/api/operator/workers/{name}", response=WorkerObject, summary="Drain a worker, or let it take requests")
def set_worker_state(request: HttpRequest, name: str, body: WorkerState) -> WorkerObject:
    worker = registry.find(name)
    registry.set_state(operator(request).actor, worker, body.state)
    return _shown(worker)


@router.delete("/api/operator/workers/{name}", response={204: None}, summary="Forget a worker that was drained")
def remove_worker(request: HttpRequest, name: str) -> tuple[int, None]:
    registry.remove(operator(request).actor, registry.find(name))
    return 204, None
