"""Workers as people look at them: as they were sampled last, or as they are right now."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Exists, F, OuterRef, Q, QuerySet
from django.utils import timezone

from fleet import live, samples
from fleet.dialects.report import Report
from fleet.models import Worker
from fleet.placement import RECENT
from tenants import request_ids
from tenants.models import InferenceRequest, Tenant

STALE = timedelta(minutes=2)
"""Samples are taken twice a minute; older than this, nobody takes any, and what they say holds no more."""


@dataclass(frozen=True, slots=True)
class Look:
    """:param looked_at: now, when it was looked at. :param at: when the worker said what follows; ``None``: it was
    never asked. :param problem: why it served nothing then; ``""``: it did. :param report: what it said of itself, if
    anything.
    """

    worker: Worker
    looked_at: datetime
    at: datetime | None
    problem: str
    report: Report | None

    @property
    def serves(self) -> bool | None:
        """Whether requests are served there. ``None``: not known, as nobody has asked it of late; gateways, who ask for
        themselves, send requests all the same.
        """
        if self.worker.state != Worker.State.ACTIVE:
            return False
        return None if self.stale else not self.problem

    @property
    def stale(self) -> bool:
        """Whether too long ago, or never, was it asked to know how it is now."""
        return self.at is None or self.looked_at - self.at > STALE

    @property
    def unseen(self) -> bool:
        """Whether somebody should have asked it meanwhile: one that is just registered is stale, but not this."""
        return self.looked_at - (self.at or self.worker.created_at) > STALE

    @property
    def hit_rate(self) -> float | None:
        """Share of prompt tokens that were found in its cache since its start."""
        if self.report is None or not self.report.prefix_queries:
            return None
        return (self.report.prefix_hits or 0) / self.report.prefix_queries


def sampled(workers: Iterable[Worker] | None = None) -> list[Look]:
    """As they were sampled last, half a minute ago at most. Asks nobody. :param workers: ``None``: all, by name."""
    latest, now, found = samples.latest(), timezone.now(), []
    for worker in _all() if workers is None else workers:
        sample = latest.get(worker.pk)
        if sample is None:
            found.append(Look(worker, now, None, "", None))
        else:
            found.append(Look(worker, now, sample.at, sample.problem, samples.report_of(sample)))
    return found


def asked(workers: Iterable[Worker] | None = None) -> list[Look]:
    """As they are right now; takes two seconds where one does not answer."""
    known = _all() if workers is None else list(workers)
    now, states = timezone.now(), live.ask(known)
    return [Look(worker, now, now, states[worker.name].problem or "", states[worker.name].report) for worker in known]


def resident(looks: Iterable[Look]) -> dict[str, list[Worker]]:
    """Digests of adapters, and on which workers each lies, whoever uses it (see :func:`explained`); on one that serves
    nothing, or of which nothing is known, it is of no use.
    """
    found: dict[str, list[Worker]] = {}
    for look in looks:
        gone = look.stale or look.problem or look.worker.state == Worker.State.DISABLED
        if look.report is not None and not gone:
            for digest in look.report.resident:
                found.setdefault(digest, []).append(look.worker)
    return found


def explained(versions: QuerySet[Any], tenant: Tenant) -> QuerySet[Any]:
    """Of versions of the tenant's adapters, those that may lie on workers of its own doing: it asked them for something
    of late, or they are pinned or canaries. Only of those may it know where they lie: whoever uses the same file has
    the same digest, and that another tenant does is nobody's business.
    """
    since = request_ids.least_at(timezone.now() - RECENT)
    asked = InferenceRequest.objects.filter(tenant=tenant, adapter_version=OuterRef("pk"), pk__gte=since)
    pinned = Q(adapter__pinned=True, adapter__current=F("pk"))
    return versions.filter(pinned | Q(adapter__canary=F("pk")) | Exists(asked))


def _all() -> list[Worker]:
    return list(Worker.objects.select_related("base_model").order_by("name"))
