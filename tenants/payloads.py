"""Prompts and answers that a tenant wants kept: whether they are, for how long, and who may read them.

Nothing is stored unless an owner of the tenant turned it on; the platform's operators read nothing unless the tenant
allows that too, and each such look is in its audit log. A key that an operator issued counts as an operator. What is in
the files of batches is read by the same rule.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.db import connection, transaction
from django.db.models import Q
from django.utils import timezone

from tenants import audit
from tenants.actors import Actor
from tenants.callers import Caller, Role
from tenants.errors import Forbidden, Invalid, NotFound
from tenants.explorer import request_of
from tenants.models import ApiKey, Batch, File, InferenceRequest, Payload, PayloadStoring, Tenant

MOST_DAYS = 30

_FIELDS = ("days", "operators_may_read")

# What was stored under a longer retention goes with the shorter one.
_EXPIRE = """
DELETE FROM tenants_payload p USING tenants_payloadstoring s
 WHERE s.tenant_id = p.tenant_id AND p.created_at <= %s - s.days * interval '1 day'
"""


def storing_of(tenant: Tenant) -> PayloadStoring | None:
    """``None``: nothing is stored."""
    found: PayloadStoring | None = PayloadStoring.objects.filter(tenant=tenant).first()
    return found


def turn_on(actor: Actor, tenant: Tenant, *, days: int, operators_may_read: bool = False) -> PayloadStoring:
    """Store what is asked and answered from now on, each for ``days`` days; or change what was said before. Gateways
    notice within seconds.

    Raises :class:`~tenants.errors.Invalid` beyond 1 to 30 days and :class:`~tenants.errors.Forbidden` for operators and
    keys that they issued.
    """
    if actor.for_operators:
        raise Forbidden(
            "Only the account's own owners decide whether prompts and answers are stored." + _whose_key(actor)
        )
    if not 1 <= days <= MOST_DAYS:
        raise Invalid(f"days: prompts and answers are kept for 1 to {MOST_DAYS} days.", "days")
    with transaction.atomic():
        known = PayloadStoring.objects.select_for_update().filter(tenant=tenant).first()
        before = audit.snapshot(known, _FIELDS) if known is not None else None
        wanted = {"days": days, "operators_may_read": operators_may_read}
        found: PayloadStoring | None = known
        if found is not None and before == wanted:
            return found
        found, _ = PayloadStoring.objects.unscoped().update_or_create(tenant=tenant, defaults=wanted)
        audit.record(actor, "payloads.storing_set", tenant.slug, tenant=tenant, before=before, after=wanted)
    return found


def turn_off(actor: Actor, tenant: Tenant) -> int:
    """Store nothing any more, and delete what is stored, all of it. Returns how many requests' payloads went."""
    with transaction.atomic():
        # Whoever writes holds a share of this row (payload_log): they are waited for, and then deleted as well.
        known = PayloadStoring.objects.select_for_update().filter(tenant=tenant).first()
        if known is None:
            return 0
        before = audit.snapshot(known, _FIELDS)
        deleted, _ = Payload.objects.filter(tenant=tenant).delete()
        known.delete()
        audit.record(
            actor, "payloads.storing_ended", tenant.slug, tenant=tenant, before=before, after={"deleted": deleted}
        )
    return deleted


def stored(tenant: Tenant) -> int:
    """How many requests' payloads are stored now."""
    count: int = Payload.objects.filter(tenant=tenant).count()
    return count


def is_stored(storing: PayloadStoring, row: InferenceRequest) -> bool:
    """Whether the request's payload is there, and not over its time."""
    return bool(_current(storing, row).exists())


def _current(storing: PayloadStoring, row: InferenceRequest) -> Any:
    since = timezone.now() - timedelta(days=storing.days)
    return Payload.objects.filter(tenant=row.tenant, pk=row.pk, created_at__gt=since)


def read(actor: Actor, tenant: Tenant, request_id: str) -> Payload:
    """What a request asked and was answered. An operator's look is recorded.

    Raises :class:`~tenants.errors.NotFound` for an unknown request and one whose payload is not (or no longer) stored,
    :class:`~tenants.errors.Forbidden` for operators whom the tenant did not allow it.
    """
    row = request_of(tenant, request_id)
    storing = storing_of(tenant)
    _check_leave(actor, storing)
    found: Payload | None = None if storing is None else _current(storing, row).first()
    if found is None:
        raise NotFound("payload", request_id, "request_id")
    if actor.for_operators:
        audit.record(actor, "payload.read", str(row.pk), tenant=tenant)
    return found


def may_read(actor: Actor, tenant: Tenant) -> bool:
    """Whether this is no operator (nor a key of theirs), or the tenant lets them read its prompts and answers."""
    if not actor.for_operators:
        return True
    storing = storing_of(tenant)
    return storing is not None and storing.operators_may_read


def open_file(caller: Caller, file: File) -> None:
    """To be called before what is in a file is given out: prompts, or the answers to them. An operator's look is
    recorded, and so is that of whoever holds an inference key which an operator issued: customers begin with such a
    key, and fetch with it what their batches answered, so that it needs no leave.

    Raises :class:`~tenants.errors.Forbidden` for viewers, and for operators whom the tenant did not allow it.
    """
    caller.require(Role.DEVELOPER)
    actor, tenant = caller.actor, caller.tenant
    if not actor.for_operators:
        return
    if caller.key is None or caller.key.scope != ApiKey.Scope.INFERENCE:
        _check_leave(actor, storing_of(tenant))
    named = Q(input_file_id=file.pk) | Q(output_file_id=file.pk) | Q(error_file_id=file.pk)
    batch = Batch.objects.filter(named, tenant=tenant).order_by("pk").values_list("pk", flat=True).first()
    audit.record(actor, "batch.read", batch or file.pk, tenant=tenant, after={"file": file.pk})


def _check_leave(actor: Actor, storing: PayloadStoring | None) -> None:
    if actor.for_operators and not (storing is not None and storing.operators_may_read):
        raise Forbidden("The account does not allow operators to read its prompts and answers." + _whose_key(actor))


def _whose_key(actor: Actor) -> str:
    """More of a refusal, for who holds a key and does not know why."""
    if not actor.operators_key:
        return ""
    return " An operator issued this key: rotate it, or use one that the account issued itself."


def expire() -> int:
    """Delete what was stored for its time. Returns how many."""
    with connection.cursor() as cursor:
        cursor.execute(_EXPIRE, [timezone.now()])
        count: int = cursor.rowcount
    return count
