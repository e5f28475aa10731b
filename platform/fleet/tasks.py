"""Celery tasks of this app. Each may run twice, or again after its process was killed; the outcome is the same."""

from __future__ import annotations

from celery import shared_task

from fleet import prefix_placement, residency, samples, trial
from tenants import activation

TRIAL_LIMIT = 420
ROUND_LIMIT = 120
"""Seconds after which a process is killed; both kinds of work end long before by themselves."""


@shared_task(name="fleet.tasks.sample_workers", ignore_result=True)  # type: ignore[untyped-decorator]
def sample_workers() -> int:
    """Write down how each worker is; see :func:`fleet.samples.take`. Returns how many workers there are."""
    return samples.take()


@shared_task(
    name="fleet.tasks.try_adapter",
    acks_late=True,
    reject_on_worker_lost=True,
    ignore_result=True,
    time_limit=TRIAL_LIMIT,
)  # type: ignore[untyped-decorator]
def try_adapter(version_id: int) -> None:
    """Try a version at a worker before it may answer; see :mod:`fleet.trial`."""
    trial.run(version_id)


@shared_task(name="fleet.tasks.try_waiting_adapters", ignore_result=True)  # type: ignore[untyped-decorator]
def try_waiting_adapters() -> int:
    """Queue again the trials that found no worker, or whose message was lost. Returns how many."""
    return sum([activation.enqueue(version_id) for version_id in activation.due()])


@shared_task(name="fleet.tasks.place_adapters", ignore_result=True, time_limit=ROUND_LIMIT)  # type: ignore[untyped-decorator]
def place_adapters() -> int:
    """Load what workers should have and lack; see :mod:`fleet.residency`. Returns how many adapters moved."""
    done = residency.reconcile() or []
    return sum(len(row["loaded"]) + len(row["unloaded"]) for row in done)


@shared_task(name="fleet.tasks.place_prefixes", ignore_result=True, time_limit=ROUND_LIMIT)  # type: ignore[untyped-decorator]
def place_prefixes() -> int:
    """Declare public prefixes where workers lack them; see :mod:`fleet.prefix_placement`. Returns how many changed."""
    done = prefix_placement.reconcile() or []
    return sum(len(one.declared) + one.withdrawn for one in done)
