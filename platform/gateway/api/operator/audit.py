from __future__ import annotations

from datetime import datetime
from typing import Any

from django.http import HttpRequest
from ninja import Query, Schema
from pydantic import Field

from gateway.api import audit
from gateway.api.callers import OperatorBearer
from gateway.api.moments import Border
from gateway.api.mutations import management_router
from gateway.api.pages import Page, Wanted, page
from gateway.api.text import Text
from tenants import provisioning
from tenants.models import AuditEntry

router = management_router("operators: audit", OperatorBearer())


class OperatorEntry(audit.Entry):
    """``tenant``: whose object it is; ``null``: the platform's own, or a tenant's that is deleted."""

    tenant: str | None


class AuditFilter(Schema):
    tenant: Text | None = Field(None, max_length=63)
    subject: Text | None = Field(None, max_length=200)
    action: Text | None = Field(None, max_length=64, description="key.issued, or key. for everything about keys")
    actor: Text | None = Field(None, max_length=200, description="the actor's name")
    since: Border | None = None
    until: Border | None = None


def _shown(entry: AuditEntry) -> OperatorEntry:
    return OperatorEntry(**audit.shown(entry).model_dump(), tenant=entry.tenant.slug if entry.tenant else None)


@router.get("/api/operator/audit", response=Page[OperatorEntry], summary="Who changed what, everywhere, newest first")
def list_audit(request: HttpRequest, window: Wanted, wanted: Query[AuditFilter]) -> dict[str, Any]:
    rows = AuditEntry.objects.unscoped().select_related("tenant")
    if wanted.tenant is not None:
        rows = rows.filter(tenant=provisioning.find(wanted.tenant))
    if wanted.subject is not None:
        rows = rows.filter(subject=wanted.subject)
    if wanted.action is not None:
        whole = not wanted.action.endswith(".")
        rows = rows.filter(action=wanted.action) if whole else rows.filter(action__startswith=wanted.action)
    if wanted.actor is not None:
        rows = rows.filter(actor_name=wanted.actor)
    return page(_between(rows, "at", wanted.since, wanted.until), window, _shown, name="pk")


def _between(rows: Any, field: str, since: datetime | None, until: datetime | None) -> Any:
    if since is not None:
        rows = rows.filter(**{f"{field}__gte": since})
    if until is not None:
        rows = rows.filter(**{f"{field}__lt": until})
    return rows
