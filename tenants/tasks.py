"""Celery tasks of this app. Each may run twice, or again after its process was killed; the outcome is the same."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta

from celery import shared_task
from django.contrib.sessions.models import Session
from django.db.models import F, Q
from django.utils import timezone

from tenants import (
    actors,
    adapter_store,
    alerts,
    intake,
    payloads,
    reconciliation_runs,
    rollups,
    settlement,
    uploads,
    webhook_delivery,
)
from tenants.db import open_pool
from tenants.models import AdapterVersion, Denial, IdempotentRequest, ReconciliationRun

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


@shared_task(name="tenants.tasks.collect_adapters", ignore_result=True)  # type: ignore[untyped-decorator]
def collect_adapters() -> dict[str, int]:
    """End overdue uploads and remove what no adapter needs; see :func:`tenants.adapter_store.collect`."""
    return {"expired_uploads": uploads.expire(), **adapter_store.collect()}


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
    run = ReconciliationRun.objects.create(asked_by=str(actors.of_task("reconcile")))
    reconciliation_runs.perform(run)
    return bool(run.ok)


@shared_task(name="tenants.tasks.reconcile_asked", ignore_result=True)  # type: ignore[untyped-decorator]
def reconcile_asked() -> int:
    """Do the looks that operators asked for; see :func:`tenants.reconciliation_runs.take_up`. Returns how many."""
    return reconciliation_runs.take_up()


@shared_task(name="tenants.tasks.forget_denials", ignore_result=True)  # type: ignore[untyped-decorator]
def forget_denials() -> int:
    """Delete refusals older than :data:`DENIAL_DAYS` days. Returns how many rows."""
    deleted, _ = Denial.objects.unscoped().filter(hour__lt=timezone.now() - timedelta(days=DENIAL_DAYS)).delete()
    return deleted


@shared_task(name="tenants.tasks.forget_payloads", ignore_result=True)  # type: ignore[untyped-decorator]
def forget_payloads() -> int:
    """See :func:`tenants.payloads.expire`. Returns how many were deleted."""
    return payloads.expire()


@shared_task(name="tenants.tasks.forget_callers", ignore_result=True)  # type: ignore[untyped-decorator]
def forget_callers() -> int:
    """Delete sessions that are over, and answers kept for an ``Idempotency-Key`` for a day. Returns how many."""
    now = timezone.now()
    sessions, _ = Session.objects.filter(expire_date__lt=now).delete()
    answers, _ = IdempotentRequest.objects.filter(created_at__lt=now - timedelta(days=1)).delete()
    return sessions + answers


@shared_task(name="tenants.tasks.deliver_webhooks", ignore_result=True)  # type: ignore[untyped-decorator]
def deliver_webhooks() -> int:
    """Send what waits for webhooks; see :func:`tenants.webhook_delivery.deliver`. Returns how many tries."""
    return webhook_delivery.deliver()


@shared_task(name="tenants.tasks.notice", ignore_result=True)  # type: ignore[untyped-decorator]
def notice() -> None:
    """Tell webhooks of budgets, refusals and expiring keys; see :func:`tenants.alerts.notice`."""
    alerts.notice()


@shared_task(name="tenants.tasks.forget_webhook_events", ignore_result=True)  # type: ignore[untyped-decorator]
def forget_webhook_events() -> int:
    """See :func:`tenants.webhook_delivery.forget`. Returns how many events were deleted."""
    return webhook_delivery.forget()
