"""Celery tasks of the gateway's own code."""

from __future__ import annotations

import asyncio

from celery import shared_task

from gateway.batches import runner
from tenants import batch_work, files

SLICE_SECONDS = 3600
"""After so long the task ends where it can: while it runs, nobody takes the clock's messages off its queue."""


# Acknowledged at once and never repeated by the broker: the periodic message, not this one, finds what is left.
@shared_task(
    name="gateway.tasks.run_batches", acks_late=False, ignore_result=True, time_limit=24 * 3600, soft_time_limit=None
)  # type: ignore[untyped-decorator]
def run_batches() -> int:
    """Work on batches until none is waiting; see :mod:`gateway.batches`. Returns how many were taken up.

    Runs in a process of its own, for as long as there is work: queue ``batches``.
    """
    if not batch_work.waiting():
        return 0
    return asyncio.run(runner.run(SLICE_SECONDS, _stopping))


def _stopping() -> bool:
    """Whether this Celery process was told to stop; known where the task runs in the process itself (solo pool)."""
    from celery.worker import state

    # Each is the exit status to come, which may be 0.
    return any(flag is not None and flag is not False for flag in (state.should_stop, state.should_terminate))


@shared_task(name="gateway.tasks.collect_files", ignore_result=True)  # type: ignore[untyped-decorator]
def collect_files() -> int:
    """Delete files that have expired; see :func:`tenants.files.collect`. Returns how many."""
    return files.collect()
