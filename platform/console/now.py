"""What the overview shows of this moment: with the page at first, then over its socket."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.template.loader import render_to_string

from fleet import availability, looks
from fleet.live import Live, described
from fleet.models import Worker
from tenants.models import Tenant
from tenants.recent import recent, recents

TEMPLATE = "console/overview_now.html"


@dataclass(frozen=True, slots=True)
class Load:
    """How full a worker is. What it did not say is ``None``. :param kv_usage: from 0 to 1. :param stale: it was not
    asked for minutes.
    """

    name: str
    model: str
    state: str
    stale: bool
    problem: str | None
    running: int | None
    waiting: int | None
    kv_usage: float | None
    slots: int | None
    resident: int | None

    @classmethod
    def of(cls, worker: Mapping[str, Any]) -> Load:
        """From a row of :func:`fleet.overview.overview`."""
        return cls(**{name: worker[name] for name in cls.__dataclass_fields__})


def loads(workers: Iterable[Worker], asked: Mapping[str, Live]) -> list[Load]:
    """Of those that were asked already."""
    return [_load(worker, asked[worker.name]) for worker in workers if worker.name in asked]


def _load(worker: Worker, live: Live) -> Load:
    said = described(worker, live)
    load: dict[str, Any] = said["load"] or dict.fromkeys(("running", "waiting", "kv_usage", "slots", "resident"))
    return Load(
        **{name: said[name] for name in ("name", "model", "state", "problem")},
        stale=False,
        **{name: load[name] for name in ("running", "waiting", "kv_usage", "slots")},
        resident=None if load["resident"] is None else len(load["resident"]),
    )


def of_platform(workers: list[Load], first_token: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """For :data:`TEMPLATE`. :param first_token: a latency of :func:`fleet.latency.latencies` of the last minute."""
    return {"recent": recent(None), "workers": workers, "first_token": first_token}


def of_tenants(tenants: Collection[Tenant]) -> dict[UUID, dict[str, Any]]:
    """For :data:`TEMPLATE`, by the tenants' ids. As many queries for many as for one; none for none."""
    if not tenants:
        return {}
    ended, models = recents(tenants), availability.available(tenants, availability.served(looks.sampled()))
    return {tenant.pk: {"recent": ended[tenant.pk], "available": models[tenant.pk]} for tenant in tenants}


def written(figures: Mapping[str, Any]) -> str:
    return render_to_string(TEMPLATE, dict(figures))
