"""Batches of requests: made and cancelled by tenants, worked on by whoever holds them.

What a line is, and how it runs, is the gateway's (``gateway/batches``); how a line ends is ``tenants/sql/batches.sql``.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from django.db import transaction
from django.db.models import Q, QuerySet
from django.utils import timezone

from tenants import audit, files
from tenants.actors import Actor
from tenants.callers import Caller, Role
from tenants.errors import Conflict, Forbidden, Invalid, NotFound, Suspended
from tenants.metadata import check_metadata
from tenants.models import ApiKey, Batch, File, Tenant
from tenants.rows import hold_tenant

ENDPOINTS = ("/v1/chat/completions", "/v1/completions")
WINDOW = timedelta(hours=24)
MOST_LINES = 50_000
MOST_UNFINISHED = 100
"""Batches of one tenant that are not finished yet."""


def create(
    actor: Actor,
    key: ApiKey,
    *,
    input_file_id: str,
    endpoint: str,
    metadata: Mapping[str, str] | None = None,
    output_seconds: int | None = None,
) -> Batch:
    """A new batch, ``validating``. It runs under ``key``: its limits, restrictions and prices, and it ends with it.

    :param output_seconds: how long its output files are kept; ``None``: as long as other files.

    Raises :class:`~tenants.errors.Invalid`, :class:`~tenants.errors.NotFound` for the file,
    :class:`~tenants.errors.Conflict` where too many of the tenant's are unfinished, or its files above their limits.
    """
    if endpoint not in ENDPOINTS:
        raise Invalid(f"endpoint has to be {' or '.join(ENDPOINTS)}.", "endpoint")
    metadata = dict(metadata or {})
    check_metadata(metadata)
    with transaction.atomic():
        tenant = hold_tenant(key.tenant_id)
        if tenant.state != Tenant.State.ACTIVE:
            raise Suspended
        now = timezone.now()
        # Locked, so that nobody deletes it meanwhile.
        unexpired = File.objects.select_for_update().filter(tenant=tenant, pk=input_file_id, expires_at__gt=now)
        file: File | None = unexpired.first()
        if file is None:
            raise NotFound("file", input_file_id, "input_file_id")
        if file.purpose != File.Purpose.BATCH:
            raise Invalid(f"input_file_id: {file.pk} was not uploaded with the purpose batch.", "input_file_id")
        if Batch.objects.filter(tenant=tenant, status__in=Batch.UNFINISHED).count() >= MOST_UNFINISHED:
            message = f"{MOST_UNFINISHED} batches are not finished yet, which is the limit."
            raise Conflict(message, code="too_many_batches")
        files.check_within_limits(tenant)
        batch: Batch = Batch.objects.create(
            tenant=tenant,
            key=key,
            endpoint=endpoint,
            input_file_id=file.pk,
            metadata=metadata,
            output_seconds=output_seconds,
            created_at=now,
            expires_at=now + WINDOW,
        )
        after = {"endpoint": endpoint, "input_file_id": file.pk, "key": key.public_id, "metadata": metadata}
        audit.record(actor, "batch.created", batch.pk, tenant=tenant, after=after)
    return batch


def keys_for(caller: Caller) -> QuerySet[ApiKey]:
    """The keys under which somebody who is signed in may run a batch: their own, and the account's own for owners. None
    of a playground: a batch goes on when they sign out.
    """
    mine = Q(member=caller.member) if caller.member is not None else Q(pk=None)
    whose = mine | Q(member=None) if caller.role == Role.OWNER else mine
    keys: QuerySet[ApiKey] = ApiKey.objects.working().filter(tenant=caller.tenant, scope=ApiKey.Scope.INFERENCE)
    return keys.filter(whose, playground_of=None)


def require_own(caller: Caller, batch_id: str) -> None:
    """An owner changes any batch of the account, a developer those of its own keys, a viewer none.

    Raises :class:`~tenants.errors.Forbidden`, :class:`~tenants.errors.NotFound`.
    """
    caller.require(Role.DEVELOPER)
    batches = Batch.objects.filter(tenant=caller.tenant)
    _found(batches, batch_id)
    if _of_others(caller, batches.filter(pk=batch_id)).exists():
        raise Forbidden("This batch runs under another's key: changing it needs the role owner.")


def require_own_file(caller: Caller, file: File) -> None:
    """As :func:`require_own`, for the input and output files of batches. An upload that no batch has named yet is
    nobody's in particular.

    Raises :class:`~tenants.errors.Forbidden`.
    """
    caller.require(Role.DEVELOPER)
    named = Q(input_file_id=file.pk) | Q(output_file_id=file.pk) | Q(error_file_id=file.pk)
    batch = _of_others(caller, Batch.objects.filter(named, tenant=caller.tenant)).first()
    if batch is not None:
        raise Forbidden(
            f"The batch {batch.pk}, under another's key, names this file: deleting it needs the role owner."
        )


def _of_others(caller: Caller, batches: QuerySet[Batch]) -> QuerySet[Batch]:
    """Those that the caller may not change."""
    if caller.role == Role.OWNER:
        return batches.none()
    # The account's own keys are no member's: theirs are the owners' business.
    return batches.exclude(key__member=caller.member, key__member__isnull=False)


def find(tenant: Tenant, batch_id: str) -> Batch:
    """Raises :class:`~tenants.errors.NotFound`."""
    return _found(Batch.objects.filter(tenant=tenant), batch_id)


def _found(batches: QuerySet[Batch], batch_id: str) -> Batch:
    # A text with NUL is none that the database could be asked for.
    batch = None if "\0" in batch_id else batches.filter(pk=batch_id).first()
    if batch is None:
        raise NotFound("batch", batch_id)
    return batch


def can_be_cancelled(batch: Batch) -> bool:
    """Whether :func:`cancel` would stop something."""
    return batch.status in (Batch.Status.VALIDATING, Batch.Status.IN_PROGRESS)


def cancel(actor: Actor, tenant: Tenant, batch_id: str) -> Batch:
    """Stop a batch: within seconds nothing of it runs, and what is done is delivered. Again: nothing changes.

    Raises :class:`~tenants.errors.Conflict` for one that has ended, :class:`~tenants.errors.NotFound`.
    """
    with transaction.atomic():
        batch = _found(Batch.objects.select_for_update(no_key=True).filter(tenant=tenant), batch_id)
        if batch.status in (Batch.Status.CANCELLING, Batch.Status.CANCELLED):
            return batch
        if not can_be_cancelled(batch):
            raise Conflict(f"The batch is {batch.status}: there is nothing left to cancel.", code="batch_ended")
        before = {"status": batch.status}
        batch.status = Batch.Status.CANCELLING
        batch.cancelling_at = timezone.now()
        batch.resume_at = None
        batch.save(update_fields=["status", "cancelling_at", "resume_at"])
        audit.record(actor, "batch.cancelled", batch.pk, tenant=tenant, before=before, after={"status": batch.status})
    return batch
