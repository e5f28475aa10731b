"""Looks at whether everything adds up, asked for by an operator or by the clock, and what they found.

Asking only writes a row: a periodic task takes it up. So no broker has to be there, and nothing is lost with one.
"""

from __future__ import annotations

import logging
from dataclasses import asdict
from datetime import timedelta

from django.db import connection, transaction
from django.utils import timezone

from tenants import audit, reconciliation
from tenants.actors import Actor
from tenants.models import ReconciliationRun, Tenant

logger = logging.getLogger(__name__)

KEPT = timedelta(days=90)


def ask(actor: Actor, tenant: Tenant | None = None) -> ReconciliationRun:
    """Have one tenant's books looked at, or everybody's; within seconds, where Celery runs. Asked for again before that
    is done, it is the same look.
    """
    slug = tenant.slug if tenant else ""
    with transaction.atomic():
        with connection.cursor() as cursor:  # of two that ask at once, the second finds the first one's
            cursor.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 7085))", [slug])
        queued = ReconciliationRun.objects.filter(state=ReconciliationRun.State.QUEUED, tenant=slug)
        run: ReconciliationRun | None = queued.order_by("asked_at").first()
        if run is None:
            run = ReconciliationRun.objects.create(tenant=slug, asked_by=str(actor))
            audit.record(actor, "reconciliation.asked", str(run.pk), tenant=None, after={"tenant": slug or None})
    return run


def take_up() -> int:
    """Do what is queued, the oldest first. Returns how many. Looking twice at the same does no harm."""
    done = 0
    for run in ReconciliationRun.objects.filter(state=ReconciliationRun.State.QUEUED).order_by("asked_at")[:10]:
        perform(run)
        done += 1
    ReconciliationRun.objects.filter(asked_at__lt=timezone.now() - KEPT).delete()
    return done


def perform(run: ReconciliationRun) -> None:
    """Look, and write down what was found; what does not add up is logged as well. Not within a transaction."""
    tenant = Tenant.objects.filter(slug=run.tenant).first() if run.tenant else None
    if run.tenant and tenant is None:
        run.state, run.result = ReconciliationRun.State.FAILED, {"message": f"There is no tenant {run.tenant!r}."}
    else:
        found = reconciliation.reconcile(tenant)
        for finding in found.findings:
            logger.error("reconcile: %s: %s %s: %s", finding.check, finding.tenant, finding.about, finding.found)
        run.state, run.ok, run.result = ReconciliationRun.State.DONE, found.ok, asdict(found)
    run.finished_at = timezone.now()
    run.save(update_fields=["state", "ok", "result", "finished_at"])
