from __future__ import annotations

from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from django.http import HttpRequest
from ninja import Schema
from pydantic import ConfigDict, Field

from gateway.api.callers import OperatorBearer, operator
from gateway.api.mutations import Body, management_router
from gateway.api.pages import Page, Wanted, page
from gateway.api.text import Text
from tenants import provisioning, reconciliation_runs
from tenants.errors import NotFound
from tenants.models import ReconciliationRun

router = management_router("operators: reconciliation", OperatorBearer())


class FindingObject(Schema):
    """What does not add up. ``about``: an account's subject, a request's id or an hour."""

    check: str
    tenant: str
    about: str
    found: str


class RunObject(Schema):
    """``ok``: whether accounts, requests, prices and roll-ups agree with the ledger; ``null`` while it is queued.

    ``tenant`` ``null``: everybody's books. ``cost`` in micro-units.
    """

    id: str
    state: Literal["queued", "done", "failed"]
    tenant: str | None
    asked_by: str
    asked_at: datetime
    finished_at: datetime | None
    ok: bool | None
    requests: int | None
    running: int | None
    entries: int | None
    prompt_tokens: int | None
    completion_tokens: int | None
    cost: int | None
    findings: list[FindingObject]
    message: str | None


class NewRun(Body):
    model_config = ConfigDict(json_schema_extra={"example": {"tenant": "acme"}})

    tenant: Text | None = Field(None, max_length=63, description="only this tenant's books")


EVERYBODY = NewRun(tenant=None)


def _shown(run: Any) -> RunObject:
    counts = ("requests", "running", "entries", "prompt_tokens", "completion_tokens", "cost", "message")
    return RunObject(
        id=str(run.pk),
        state=run.state,
        tenant=run.tenant or None,
        asked_by=run.asked_by,
        asked_at=run.asked_at,
        finished_at=run.finished_at,
        ok=run.ok,
        findings=run.result.get("findings", []),
        **{name: run.result.get(name) for name in counts},
    )


@router.post(
    "/api/operator/reconciliations", response={202: RunObject}, summary="Have the books looked at, in the background"
)
def ask_reconciliation(request: HttpRequest, body: NewRun = EVERYBODY) -> tuple[int, RunObject]:
    tenant = None if body.tenant is None else provisioning.find(body.tenant, "tenant")
    return 202, _shown(reconciliation_runs.ask(operator(request).actor, tenant))


@router.get("/api/operator/reconciliations", response=Page[RunObject], summary="What was looked at, the last one first")
def list_reconciliations(request: HttpRequest, window: Wanted) -> dict[str, Any]:
    return page(ReconciliationRun.objects.all(), window, _shown, name="pk")


@router.get("/api/operator/reconciliations/{run_id}", response=RunObject, summary="One look, and what it found")
def get_reconciliation(request: HttpRequest, run_id: str) -> RunObject:
    try:
        run = ReconciliationRun.objects.filter(pk=UUID(run_id)).first()
    except ValueError:
        run = None
    if run is None:
        raise NotFound("reconciliation", run_id)
    return _shown(run)
