"""Celery tasks of this app. Each may run twice, or again after its process was killed; the outcome is the same."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta

from celery import shared_task
from django.db.models import F, Q
from django.utils import timezone

from tenants import intake, reconciliation, rollups, settlement
from tenants.db import open_pool
from tenants.models import AdapterVersion, Denial

logger = logging.getLogger(__name__)

WAITING_SECONDS = 60
DENIAL_DAYS = 30


@shared_task(name="tenants.tasks.check_adapter", acks_late=True, reject_on_worker_lost=True, ignore_result=True)  # type: ignore[untyped-decorator]
def check_adapter(version_id: int) -> None:
    """Check a pending adapter version; see :func:`tenants.intake.check`."""
    intake.check(version_id)


@shared_task(name="tenants.tasks.check_waiting_adapters", ignore_result=True)  # type: ignore[untyped-decorator]
def check_waiting_adapters() -> int:
    """Queue again what is still pending: its message was lost, or the machine failed. Returns how many.

    First after a minute, then at twice the age each time; after ``intake.MAX_TRIES`` the version is rejected.
    """
    now, pending = timezone.now(), AdapterVersion.objects.unscoped().filter(state="pending")
    due = Q()
    for tries in range(intake.MAX_TRIES + 1):
        more = Q(tries__gte=tries) if tries == intake.MAX_TRIES else Q(tries=tries)
        due |= more & Q(created_at__lt=now - timedelta(seconds=WAITING_SECONDS * 2**tries))
    queued = 0
    for version in pending.select_related("adapter__tenant").filter(due)[:100]:
        if version.tries >= intake.MAX_TRIES:
            intake.give_up(version)
            continue
        intake.enqueue(version)
        pending.filter(pk=version.pk).update(tries=F("tries") + 1)
        queued += 1
    return queued


@shared_task(name="tenants.tasks.reap", ignore_result=True)  # type: ignore[untyped-decorator]
def reap() -> int:
    """Settle the requests of gateways that died; see :func:`tenants.settlement.reap`. Returns how many."""

    async def run() -> int:
        async with open_pool(min_size=1, max_size=1) as pool:
            return await settlement.reap(pool)

    reaped = asyncio.run(run())
    if reaped:
        logger.warning("settled %d requests whose gateway was gone", reaped)
    return reaped


@shared_task(name="tenants.tasks.roll_up", ignore_result=True)  # type: ignore[untyped-decorator]
def roll_up() -> int:
    """Bring usage by hour up to date; see :func:`tenants.rollups.catch_up`. Returns how many hours changed."""
    return rollups.catch_up()


@shared_task(name="tenants.tasks.reconcile", ignore_result=True)  # type: ignore[untyped-decorator]
def reconcile() -> bool:
    """Look whether everything adds up; what does not is logged as an error. Returns whether it does."""
    found = reconciliation.reconcile()
    for finding in found.findings:
        logger.error("reconcile: %s: %s %s: %s", finding.check, finding.tenant, finding.about, finding.found)
    return found.ok


@shared_task(name="tenants.tasks.forget_denials", ignore_result=True)  # type: ignore[untyped-decorator]
def forget_denials() -> int:
    """Delete refusals older than :data:`DENIAL_DAYS` days. Returns how many rows."""
    deleted, _ = Denial.objects.unscoped().filter(hour__lt=timezone.now() - timedelta(days=DENIAL_DAYS)).delete()
    return deleted
