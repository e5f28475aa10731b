from __future__ import annotations

from datetime import datetime
from typing import Any

from django.http import HttpRequest
from ninja import Schema

from gateway.api.callers import TenantKey, caller
from gateway.api.mutations import management_router
from gateway.api.pages import Page, Wanted, page
from tenants.callers import Role
from tenants.models import AuditEntry

router = management_router("audit", TenantKey(Role.OWNER))


class Actor(Schema):
    kind: str
    name: str
    address: str | None


class Entry(Schema):
    """Who changed what. ``before`` and ``after`` hold what differs."""

    id: str
    at: datetime
    actor: Actor
    action: str
    subject: str
    before: dict[str, Any]
    after: dict[str, Any]


def shown(entry: AuditEntry) -> Entry:
    actor = Actor(kind=entry.actor_kind, name=entry.actor_name, address=entry.address)
    return Entry(
        id=str(entry.pk),
        at=entry.at,
        actor=actor,
        action=entry.action,
        subject=entry.subject,
        before=entry.before,
        after=entry.after,
    )


@router.get("/api/audit", response=Page[Entry], summary="Who changed what in the account, newest first")
def list_audit(request: HttpRequest, window: Wanted, subject: str | None = None) -> dict[str, Any]:
    rows = AuditEntry.objects.filter(tenant=caller(request).tenant)
    if subject is not None:
        rows = rows.filter(subject=subject)
    return page(rows, window, shown, name="pk")
