"""Which workers there are: registered, drained, removed. Operators only."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
from django.core.exceptions import ValidationError
from django.db import transaction

from fleet.models import Worker
from fleet.router import DIALECTS
from inference.errors import InferenceError
from tenants import audit, rows
from tenants.actors import Actor
from tenants.errors import Conflict, Invalid, NotFound
from tenants.models import BaseModel

PATIENCE_SECONDS = 10.0
"""For /health, which may compute a step."""

_SHOWN = ("url", "base_model", "dialect", "state")


@dataclass(frozen=True, slots=True)
class Registered:
    """:param problem: why it does not serve now, although it is registered."""

    worker: Worker
    created: bool
    problem: str | None


def find(name: str) -> Worker:
    """Raises :class:`~tenants.errors.NotFound`."""
    worker = Worker.objects.select_related("base_model").filter(name=name).first() if "\0" not in name else None
    if worker is None:
        raise NotFound("worker", name)
    return worker


def register(
    actor: Actor,
    name: str,
    *,
    url: str,
    base_model: BaseModel,
    dialect: str = "native",
    state: str = "active",
    new: bool = False,
) -> Registered:
    """Tell the gateways about a worker, or change what they know of it; they ask it within seconds.

    One that does not answer is registered all the same. Raises :class:`~tenants.errors.Invalid`, also for a worker that
    serves other weights than the model's.

    :param new: change none that there is: a :class:`~tenants.errors.Conflict` instead.
    """
    wanted = Worker(name=name, url=url.rstrip("/"), base_model=base_model, dialect=dialect, state=state)
    problem = _problem(wanted)
    after = audit.snapshot(wanted, _SHOWN)
    with transaction.atomic():
        worker, created = Worker.objects.select_for_update().get_or_create(
            name=name, defaults={field: getattr(wanted, field) for field in _SHOWN}
        )
        if new and not created:
            raise Conflict(f"There is a worker {name!r} already; it is changed on its own page.", "name")
        before = {} if created else audit.snapshot(worker, _SHOWN)
        if before != after:
            for field in _SHOWN:
                setattr(worker, field, getattr(wanted, field))
            worker.save()
            action = "worker.registered" if created else "worker.changed"
            audit.record(actor, action, name, tenant=None, before=before, after=after)
    return Registered(worker, created, problem)


def change(
    actor: Actor,
    worker: Worker,
    *,
    url: str | None = None,
    base_model: BaseModel | None = None,
    state: str | None = None,
) -> Registered:
    """Change what is given; anything else stays as it is when this is written. The worker is asked as in
    :func:`register`, which raises the same; :class:`~tenants.errors.Conflict` where it is another address or model by
    then than the one that was asked.
    """
    given = {"url": url and url.rstrip("/"), "base_model": base_model, "state": state}
    changes = {name: value for name, value in given.items() if value is not None}
    _set(worker, changes)
    problem, asked = _problem(worker), _identity(worker)
    with transaction.atomic():
        rows.hold(worker, Worker.objects.select_for_update(of=("self",)), "worker", worker.name)
        before = audit.snapshot(worker, _SHOWN)
        _set(worker, changes)
        if _identity(worker) != asked:
            raise Conflict(f"Somebody else changed the worker {worker} meanwhile. Look at what it is now.")
        after = audit.snapshot(worker, _SHOWN)
        if before != after:
            worker.save(update_fields=list(changes))
            audit.record(actor, "worker.changed", worker.name, tenant=None, before=before, after=after)
    return Registered(worker, False, problem)


def _set(worker: Worker, changes: Mapping[str, Any]) -> None:
    for name, value in changes.items():
        setattr(worker, name, value)


def _identity(worker: Worker) -> tuple[object, ...]:
    """What the answer of a worker that was asked is an answer about."""
    return worker.url, worker.base_model_id, worker.dialect


def set_state(actor: Actor, worker: Worker, state: str) -> None:
    """``draining``: finish what runs, take nothing new. ``active``: take requests again."""
    with transaction.atomic():
        rows.hold(worker, Worker.objects.select_for_update(), "worker", worker.name)
        if worker.state != state:
            before, worker.state = {"state": worker.state}, state
            worker.save(update_fields=["state"])
            audit.record(
                actor, f"worker.{_VERBS[state]}", worker.name, tenant=None, before=before, after={"state": state}
            )


_VERBS = {"draining": "drained", "active": "activated", "disabled": "disabled"}


def remove(actor: Actor, worker: Worker) -> None:
    """Gateways forget it; the process itself is its operator's to stop. What runs there still ends there.

    Raises :class:`~tenants.errors.Conflict` for one that takes requests: it has to be drained first, unless it does
    not serve anyhow.
    """
    silent = worker.state == Worker.State.ACTIVE and asyncio.run(_asked(worker))[1] is not None
    with transaction.atomic():
        rows.hold(worker, Worker.objects.select_for_update(), "worker", worker.name)
        if worker.state == Worker.State.ACTIVE and not silent:
            raise Conflict(f"Worker {worker} takes requests; drain it first.", code="worker_active")
        audit.record(actor, "worker.removed", worker.name, tenant=None, before=audit.snapshot(worker, _SHOWN))
        worker.delete()


def _clean(worker: Worker) -> None:
    try:
        worker.full_clean(validate_unique=False)
    except ValidationError as error:
        name, messages = next(iter(error.message_dict.items()))
        raise Invalid(f"{name}: {messages[0]}", name) from None


def _problem(wanted: Worker) -> str | None:
    """Ask the worker. Returns why it serves nothing now, ``None`` where it does; raises
    :class:`~tenants.errors.Invalid`.
    """
    _clean(wanted)
    fingerprint, problem = asyncio.run(_asked(wanted))
    base_model = wanted.base_model
    if fingerprint is not None and fingerprint != base_model.fingerprint:
        raise Invalid(
            f"{wanted.url} serves weights with the fingerprint {fingerprint}, but {base_model.name} is "
            f"registered with {base_model.fingerprint}; start the worker with --model {base_model.directory}.",
            "model",
        )
    return problem


async def _asked(worker: Worker) -> tuple[str | None, str | None]:
    """The fingerprint of what the worker serves, as far as it says, and why it serves nothing now."""
    async with aiohttp.ClientSession() as session:
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                return await DIALECTS[worker.dialect](worker.url, session).check(), None
        except InferenceError as error:
            return None, str(error).rstrip(".")
        except TimeoutError:
            return None, f"no answer within {PATIENCE_SECONDS:.0f} s"
