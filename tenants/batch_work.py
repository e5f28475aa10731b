"""Working on batches: who holds which, and how each goes from one state to the next.

Every change is made only by whoever still holds the batch, in one statement or transaction.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from django.db import connection, transaction
from django.db.models import Q
from django.utils import timezone

from tenants import files, webhooks
from tenants.models import Batch, BatchResult, File

HOLD = timedelta(seconds=20)
"""How long a batch stays with a runner that says nothing more: after a kill it takes so long until another goes on."""

# One of each tenant, so that nobody's hundred batches stand before somebody's one; whose turn was longest ago goes
# first. What another runner is just taking is passed over.
_CLAIM = """
UPDATE tenants_batch
   SET runner = %(runner)s, held_until = now() + make_interval(secs => %(hold)s), worked_at = now(), resume_at = NULL
 WHERE id = (
    SELECT b.id FROM tenants_batch b
     WHERE b.status IN ('validating', 'in_progress', 'finalizing', 'cancelling')
       AND (b.held_until IS NULL OR b.held_until < now())
       AND (b.resume_at IS NULL OR b.resume_at <= now())
       AND b.id <> ALL (%(held)s)
       AND COALESCE(b.tenant_id <> ALL (%(tenants)s::uuid[]), b.status = 'cancelling' OR b.expires_at <= now())
     ORDER BY (b.status = 'cancelling') DESC,
              (SELECT max(o.worked_at) FROM tenants_batch o WHERE o.tenant_id = b.tenant_id) NULLS FIRST, b.id
     LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED
 )
RETURNING id
"""


def waiting(seconds: float = 0.0) -> bool:
    """Whether there is a batch that somebody could take up now. :param seconds: and could have for so long."""
    now = timezone.now() - timedelta(seconds=seconds)
    free = Q(held_until=None) | Q(held_until__lt=now)
    due = Q(resume_at=None) | Q(resume_at__lte=now)
    untouched = Q(worked_at=None) | Q(worked_at__lte=now)
    found = Batch.objects.unscoped().filter(free, due, untouched, created_at__lte=now, status__in=Batch.UNFINISHED)
    return found.exists()


def at_work() -> bool:
    """Whether somebody holds a batch."""
    return Batch.objects.unscoped().filter(held_until__gt=timezone.now(), status__in=Batch.UNFINISHED).exists()


def claim(runner: str, tenants: Collection[Any] | None, held: Collection[str] = ()) -> Batch | None:
    """Take up the batch whose turn it is.

    :param tenants: of whom none is wanted: the runner has one of theirs. ``None``: anybody's, if it was cancelled or
        its time is over.
    :param held: ids of those that the runner works on: the database may think otherwise after it was away.
    """
    without = None if tenants is None else list(tenants)
    with connection.cursor() as cursor:
        cursor.execute(
            _CLAIM, {"runner": runner, "hold": int(HOLD.total_seconds()), "tenants": without, "held": list(held)}
        )
        row = cursor.fetchone()
    if row is None:
        return None
    batch: Batch = Batch.objects.unscoped().select_related("tenant").get(pk=row[0])
    return batch


def renew(runner: str, batch_ids: Sequence[str]) -> dict[str, str]:
    """Go on holding these; returns the status of each that the runner still holds."""
    held = Batch.objects.unscoped().filter(pk__in=batch_ids, runner=runner)
    held.update(held_until=timezone.now() + HOLD)
    return dict(held.values_list("pk", "status"))


def release(runner: str, batch: Batch, resume_at: datetime | None = None) -> None:
    """Let somebody else have it. :param resume_at: not before then, be its time over or not."""
    _mine(runner, batch).update(runner="", held_until=None, resume_at=resume_at)


def begin(runner: str, batch: Batch, total: int) -> bool:
    """Its input is valid and has so many lines. ``False``: it is no longer the runner's, or was cancelled."""
    batch.status, batch.in_progress_at, batch.total = Batch.Status.IN_PROGRESS, timezone.now(), total
    found = _mine(runner, batch).filter(status=Batch.Status.VALIDATING)
    return bool(found.update(status=batch.status, in_progress_at=batch.in_progress_at, total=total))


def fail(runner: str, batch: Batch, errors: Sequence[dict[str, Any]]) -> bool:
    """Its input is not valid. ``False`` as in :func:`begin`."""
    with transaction.atomic():
        found = _mine(runner, batch).filter(status=Batch.Status.VALIDATING)
        changed = found.update(
            status=Batch.Status.FAILED, failed_at=timezone.now(), errors=list(errors), runner="", held_until=None
        )
        if changed:
            webhooks.emit(batch.tenant, "batch.failed", {"id": batch.pk, "errors": list(errors)[:3]}, once=batch.pk)
    return bool(changed)


def done_lines(batch: Batch) -> set[int]:
    """Numbers of the lines that are finished."""
    return set(BatchResult.objects.filter(batch__tenant=batch.tenant, batch=batch).values_list("line", flat=True))


def finalize(runner: str, batch: Batch) -> bool:
    """All lines are finished, or its time is over; from now on no further one is taken. ``False`` as in `begin`."""
    found = _mine(runner, batch).filter(status__in=(Batch.Status.VALIDATING, Batch.Status.IN_PROGRESS))
    return bool(found.update(status=Batch.Status.FINALIZING, finalizing_at=timezone.now()))


_END = {
    Batch.Status.COMPLETED: "completed_at",
    Batch.Status.EXPIRED: "expired_at",
    Batch.Status.CANCELLED: "cancelled_at",
}


def finish(
    runner: str, batch: Batch, status: Batch.Status, output: Path | None, errors: Path | None, *, unfinished: int = 0
) -> bool:
    """The end: its files appear, its finished lines go, in one transaction. ``False``: it is no longer the runner's.

    :param status: ``completed``, ``expired`` or ``cancelled``.
    :param output: what becomes its output file, written where :func:`tenants.files.incoming` says; ``None``: none.
    :param unfinished: lines that stand in ``errors`` without having been finished.
    """
    with transaction.atomic():
        held: Batch | None = _mine(runner, batch).select_for_update(no_key=True).first()
        if held is None or held.status not in Batch.UNFINISHED:
            return False
        held.output_file_id = _file(held, output, "output")
        held.error_file_id = _file(held, errors, "error")
        held.failed += unfinished
        held.status = status
        held.runner, held.held_until = "", None
        setattr(held, _END[status], timezone.now())
        held.save()
        BatchResult.objects.filter(batch__tenant=held.tenant, batch=held).delete()
        facts = {
            "id": held.pk,
            "status": held.status,
            "output_file_id": held.output_file_id,
            "error_file_id": held.error_file_id,
            "request_counts": {"total": held.total, "completed": held.completed, "failed": held.failed},
        }
        webhooks.emit(held.tenant, f"batch.{status.value}", facts, once=held.pk)
    return True


def _file(batch: Batch, content: Path | None, what: str) -> str | None:
    if content is None:
        return None
    kept = files.KEPT if batch.output_seconds is None else timedelta(seconds=batch.output_seconds)
    return files.keep(batch.tenant, content, f"{batch.pk}_{what}.jsonl", File.Purpose.BATCH_OUTPUT, kept).pk


def _mine(runner: str, batch: Batch) -> Any:
    return Batch.objects.filter(tenant=batch.tenant, pk=batch.pk, runner=runner)
