"""Which adapters should lie on which worker, by what PostgreSQL says; and making it so.

Wanted are pinned adapters, on every worker of their base model; then what was used of late, on as many workers as its
share of the requests is worth; and then canaries that nobody has met yet, on one. A worker loads what a request names
in any case: placing only spares the first request after a restart its wait, and takes out what nobody may use any more.
Digests come from versions of the worker's own base model, and a worker that says it serves another one is left alone.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from hashlib import blake2b
from typing import Literal

from django.db import connection
from django.utils import timezone

from fleet.live import Live
from fleet.models import Worker
from tenants import request_ids
from tenants.models import AdapterVersion, BaseModel

RECENT = timedelta(minutes=15)
MOST_REQUESTS = 20_000
"""Of the recent requests so many are looked at, the latest: their shares are known well enough from them."""

Why = Literal["pinned", "canary", "recent"]


@dataclass(frozen=True, slots=True)
class Wanted:
    """An adapter that should be loaded. :param share: of the recent requests with an adapter, 0 to 1."""

    digest: str
    why: Why
    share: float = 0.0


@dataclass(slots=True)
class Plan:
    """What one worker should have.

    :ivar wanted: digests and why they should be there; those that do not fit are not among them.
    :ivar load: of them, what is missing. :ivar unload: what lies there and nobody may use any more.
    :ivar left_out: pinned adapters that found no slot.
    """

    wanted: dict[str, Why] = field(default_factory=dict)
    load: list[str] = field(default_factory=list)
    unload: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


def wanted(base: BaseModel) -> list[Wanted]:
    """What should be loaded of a base model's adapters, most wanted first; each digest once."""
    kept = _kept(base)
    found = {digest: Wanted(digest, why) for digest, why in kept.items() if why == "pinned"}
    for digest, share in _recent(base):
        found.setdefault(digest, Wanted(digest, kept.get(digest, "recent"), share))
    for digest, why in kept.items():
        found.setdefault(digest, Wanted(digest, why))
    return list(found.values())


_USABLE = """v.state = 'ready' AND v.deleted_at IS NULL AND d.deleted_at IS NULL"""

_KEPT = f"""
SELECT v.digest, d.pinned FROM tenants_adapter d
  JOIN tenants_tenant t ON t.id = d.tenant_id AND t.state = 'active'
  JOIN tenants_adapterversion v ON v.id = d.canary_id OR v.id = d.current_id AND d.pinned
 WHERE d.base_model_id = %s AND (d.pinned OR d.canary_id IS NOT NULL) AND {_USABLE}
 ORDER BY d.pinned DESC, d.id
"""  # noqa: S608 - only the text above is put in

# Request ids hold the time of admission: the latest ones stand at the end of the primary key.
_RECENT = f"""
SELECT v.digest, count(*)::float8 / sum(count(*)) OVER () FROM (
    SELECT r.adapter_version_id, r.tenant_id FROM tenants_inferencerequest r
     WHERE r.id >= %s AND r.adapter_version_id IS NOT NULL AND r.base_model_id = %s
     ORDER BY r.id DESC LIMIT %s
) r
  JOIN tenants_tenant t ON t.id = r.tenant_id AND t.state = 'active'
  JOIN tenants_adapterversion v ON v.id = r.adapter_version_id
  JOIN tenants_adapter d ON d.id = v.adapter_id
 WHERE {_USABLE}
 GROUP BY v.digest ORDER BY count(*) DESC, v.digest
"""  # noqa: S608


def _kept(base: BaseModel) -> dict[str, Why]:
    found: dict[str, Why] = {}
    with connection.cursor() as cursor:
        cursor.execute(_KEPT, [base.pk])
        for digest, pinned in cursor.fetchall():
            found.setdefault(digest, "pinned" if pinned else "canary")
    return found


def _recent(base: BaseModel) -> list[tuple[str, float]]:
    since = request_ids.least_at(timezone.now() - RECENT)
    with connection.cursor() as cursor:
        cursor.execute(_RECENT, [since, base.pk, MOST_REQUESTS])
        return list(cursor.fetchall())


def plan(wishes: Sequence[Wanted], workers: Mapping[str, Live], gone: Iterable[str]) -> dict[str, Plan]:
    """What each worker of one base model should have.

    Only pinned adapters may push another adapter out, and one slot is left to others where there are two. What was used
    of late goes where there is room: a full worker keeps the latest by itself. So do canaries: any developer of a
    tenant makes them, and two for each of its adapters would take every slot of every worker from the others.

    :param workers: those that serve, by name. :param gone: digests that nobody may use.
    """
    gone = set(gone)
    plans = {name: Plan() for name in workers}
    there = {name: set(live.report.resident if live.report else ()) for name, live in workers.items()}
    slots = {name: (live.report.slots if live.report else None) or 0 for name, live in workers.items()}
    for name, one in plans.items():
        one.unload = sorted(there[name] & gone)
    kept = [wish for wish in wishes if wish.why == "pinned"]
    for name, one in plans.items():
        room = slots[name] - (slots[name] > 1)
        one.left_out = [wish.digest for wish in kept[room:]]
        for wish in kept[:room]:
            _want(one, wish, there[name])
    for wish in wishes:
        if wish.why != "pinned":
            _spread(wish, plans, there, slots)
    return plans


def _spread(wish: Wanted, plans: dict[str, Plan], there: dict[str, set[str]], slots: dict[str, int]) -> None:
    copies = max(1, math.ceil(wish.share * len(plans)))
    # Where it lies already comes first, then an order of its own: a worker more or less moves few adapters.
    order = sorted(plans, key=lambda name: (wish.digest not in there[name], _rank(name, wish.digest)))
    for name in order[:copies]:
        free = slots[name] - len(there[name] - set(plans[name].unload)) - len(plans[name].load)
        if wish.digest in there[name] or free > 0:
            _want(plans[name], wish, there[name])


def _want(one: Plan, wish: Wanted, there: set[str]) -> None:
    one.wanted[wish.digest] = wish.why
    if wish.digest not in there:
        one.load.append(wish.digest)


def _rank(worker: str, digest: str) -> bytes:
    return blake2b(f"{worker}\0{digest}".encode(), digest_size=8).digest()


def names(base: BaseModel, digests: Iterable[str]) -> tuple[dict[str, list[str]], set[str]]:
    """What the digests are called, ``acme/pirate@3``, and which of them nobody may use any more.

    A digest that no version of this base model ever had has neither: an operator loaded it by hand.
    """
    rows = AdapterVersion.with_deleted.unscoped().select_related("adapter__tenant")
    called: dict[str, list[str]] = defaultdict(list)
    usable: set[str] = set()
    for version in rows.filter(adapter__base_model=base, digest__in=list(digests)).order_by("adapter_id", "number"):
        called[version.digest].append(f"{version.adapter}@{version.number}")
        alive = version.deleted_at is None and version.adapter.deleted_at is None
        if alive and version.state in {AdapterVersion.State.READY, AdapterVersion.State.CHECKED}:
            usable.add(version.digest)
    return dict(called), called.keys() - usable


def workers_by_model() -> dict[BaseModel, list[Worker]]:
    """Workers that take requests, by what they serve."""
    found: dict[BaseModel, list[Worker]] = defaultdict(list)
    for worker in Worker.objects.filter(state=Worker.State.ACTIVE).select_related("base_model").order_by("name"):
        found[worker.base_model].append(worker)
    return found
