"""Which adapters lie on which workers, beside which should; and loading what is missing."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Any

import aiohttp

from fleet import advisory_lock, live
from fleet.live import Live
from fleet.models import Worker
from fleet.placement import Plan, names, plan, wanted, workers_by_model
from fleet.router import DIALECTS
from inference.errors import InferenceError
from tenants.models import BaseModel

logger = logging.getLogger(__name__)

MOST_LOADS = 16
"""Of one worker in one round; the next comes in seconds."""

ROUND_SECONDS = 50.0
"""For all that is done at the workers, which is done side by side; what is left over comes in the next round."""

_LOCK = 0x6C6F_7261_706C  # one round at a time, whoever starts it


def residency() -> list[dict[str, Any]]:
    """Every worker that takes requests: its slots, what lies in them, what should and does not.

    Asks the workers; takes a few seconds at most.
    """
    found = [
        _described(worker, look.states[worker.name], look.plans.get(worker.name), look.called)
        for look in _looks()
        for worker in look.workers
    ]
    return sorted(found, key=lambda row: row["worker"])


def reconcile() -> list[dict[str, Any]] | None:
    """Load what should be there and is missing, unload what nobody may use. Returns what was done, by worker; ``None``
    where another round is under way. A worker that refuses or fails is told again in the next round.

    Takes little longer than :data:`ROUND_SECONDS` at most. Not in a transaction, which would stay open all the while.
    """
    with advisory_lock.held(_LOCK) as alone:
        if not alone:
            return None
        plans = [
            (worker, look.plans[worker.name]) for look in _looks() for worker in look.workers if look.serves(worker)
        ]
        return asyncio.run(_carry_out([(worker, one) for worker, one in plans if one.load or one.unload]))


@dataclass(frozen=True, slots=True)
class _Look:
    """One base model's workers: how they are, a plan for each that serves, and what the digests are called."""

    workers: list[Worker]
    states: dict[str, Live]
    plans: dict[str, Plan]
    called: dict[str, list[str]]

    def serves(self, worker: Worker) -> bool:
        return worker.name in self.plans


def _looks() -> list[_Look]:
    models = workers_by_model()
    states = live.ask([worker for workers in models.values() for worker in workers])
    return [
        _look(base, workers, {worker.name: states[worker.name] for worker in workers})
        for base, workers in models.items()
    ]


def _look(base: BaseModel, workers: list[Worker], states: dict[str, Live]) -> _Look:
    wishes = wanted(base)
    there = {digest for state in states.values() if state.report for digest in state.report.resident}
    called, gone = names(base, there | {wish.digest for wish in wishes})
    serving = {name: state for name, state in states.items() if state.problem is None and state.report is not None}
    return _Look(workers, states, plan(wishes, serving, gone), called)


def _described(worker: Worker, state: Live, one: Plan | None, called: dict[str, list[str]]) -> dict[str, Any]:
    resident = state.report.resident if state.report else ()
    why = one.wanted if one else {}
    gone = set(one.unload) if one else set()

    def shown(digest: str, status: str) -> dict[str, Any]:
        return {"digest": digest, "adapters": called.get(digest, []), "why": status}

    return {
        "worker": worker.name,
        "base_model": worker.base_model.name,
        "problem": state.problem,
        "slots": state.report.slots if state.report else None,
        "resident": [shown(digest, "gone" if digest in gone else why.get(digest, "used")) for digest in resident],
        "missing": [shown(digest, why[digest]) for digest in one.load] if one else [],
        "left_out": [shown(digest, "no slot") for digest in one.left_out] if one else [],
    }


async def _carry_out(plans: list[tuple[Worker, Plan]]) -> list[dict[str, Any]]:
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=2.0)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        return list(await asyncio.gather(*(_at(worker, one, session) for worker, one in plans)))


async def _at(worker: Worker, one: Plan, session: aiohttp.ClientSession) -> dict[str, Any]:
    dialect = DIALECTS[worker.dialect](worker.url, session)
    done: dict[str, Any] = {"worker": worker.name, "loaded": [], "unloaded": [], "problems": []}
    steps = [("unloaded", dialect.unload, digest) for digest in one.unload]
    steps += [("loaded", dialect.load, digest) for digest in one.load[:MOST_LOADS]]
    try:
        async with asyncio.timeout(ROUND_SECONDS):
            for what, step, digest in steps:
                try:
                    await step(digest)
                    done[what].append(digest)
                except (InferenceError, TimeoutError) as error:
                    done["problems"].append(f"{digest[:12]} could not be {what}: {str(error) or 'no answer'}")
    except TimeoutError:
        done["problems"].append(f"not all was done within {ROUND_SECONDS:g} s; the rest is left to the next round")
    for problem in done["problems"]:
        logger.warning("worker %s: %s", worker.name, problem)
    if done["loaded"] or done["unloaded"]:
        logger.info("worker %s: loaded %d, unloaded %d", worker.name, len(done["loaded"]), len(done["unloaded"]))
    return done
