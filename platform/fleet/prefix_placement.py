"""Putting the public prefixes onto the workers, which forget them when they stop; and taking withdrawn ones away."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field

import aiohttp

from fleet import advisory_lock, public_prefixes
from fleet.models import Worker
from fleet.public_prefixes import Wanted
from fleet.router import DIALECTS
from inference.errors import InferenceError

logger = logging.getLogger(__name__)

ROUND_SECONDS = 30.0
"""For one worker in one round; all are told side by side, and what is left over comes in the next round."""

LOOK_SECONDS = 2.0

_LOCK = 0x6C6F_7261_7078  # one round at a time, whoever starts it


@dataclass(slots=True)
class Done:
    """What was done at one worker. :ivar declared: prefixes' names. :ivar withdrawn: how many; they have none now."""

    worker: str
    declared: list[str] = field(default_factory=list)
    withdrawn: int = 0
    problems: list[str] = field(default_factory=list)


def reconcile() -> list[Done] | None:
    """Declare at every active worker what it lacks of its base model's prefixes, and withdraw what else lies there,
    declared by hand or not. ``None`` where another round is under way.

    Takes little longer than :data:`ROUND_SECONDS` at most. Not in a transaction, which would stay open all the while.
    """
    with advisory_lock.held(_LOCK) as alone:
        if not alone:
            return None
        wishes = public_prefixes.wanted()
        return asyncio.run(_round([(worker, wishes.get(worker.base_model_id, {})) for worker in _workers()]))


def standing() -> dict[str, dict[str, bool | None]]:
    """Whether each prefix is in force, by its name and then by the worker's; ``None`` where the worker does not say.

    Asks the workers; takes :data:`LOOK_SECONDS` at most.
    """
    wishes, workers = public_prefixes.wanted(), _workers()
    there = asyncio.run(_look(workers))
    found: dict[str, dict[str, bool | None]] = {}
    for worker in workers:
        known = there[worker.name]
        for each, wish in wishes.get(worker.base_model_id, {}).items():
            by_worker = found.setdefault(wish.name, {})
            held = None if known is None else each in known
            # Under an adapter's canary too, it is in force where both are.
            by_worker[worker.name] = held and by_worker.get(worker.name, True)
    return found


def _workers() -> list[Worker]:
    return list(Worker.objects.filter(state=Worker.State.ACTIVE).order_by("name"))


async def _look(workers: list[Worker]) -> dict[str, set[str] | None]:
    async with aiohttp.ClientSession() as session:

        async def one(worker: Worker) -> set[str] | None:
            dialect = DIALECTS[worker.dialect](worker.url, session)
            if not dialect.capabilities.public_prefixes:
                return None
            try:
                async with asyncio.timeout(LOOK_SECONDS):
                    return await dialect.public_prefixes()
            except (InferenceError, TimeoutError):
                return None

        found = await asyncio.gather(*(one(worker) for worker in workers))
    return {worker.name: known for worker, known in zip(workers, found, strict=True)}


async def _round(workers: list[tuple[Worker, dict[str, Wanted]]]) -> list[Done]:
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=LOOK_SECONDS)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        return list(await asyncio.gather(*(_at(worker, wishes, session) for worker, wishes in workers)))


async def _at(worker: Worker, wishes: dict[str, Wanted], session: aiohttp.ClientSession) -> Done:
    dialect = DIALECTS[worker.dialect](worker.url, session)
    done = Done(worker.name)
    if not dialect.capabilities.public_prefixes:
        return done
    try:
        async with asyncio.timeout(ROUND_SECONDS):
            there = await dialect.public_prefixes()
            for prefix in sorted(there - wishes.keys()):
                await dialect.withdraw_prefix(prefix)
                done.withdrawn += 1
            for prefix, wish in wishes.items():
                if prefix not in there:
                    try:
                        await dialect.declare_prefix(wish.digest, wish.tokens)
                        done.declared.append(wish.name)
                    except InferenceError as error:  # too long for this worker, say: the others are not kept from it
                        done.problems.append(f"{wish.name}: {error}")
    except (InferenceError, TimeoutError) as error:
        done.problems.append(str(error) or f"no answer within {ROUND_SECONDS:g} s")
    for problem in done.problems:
        logger.warning("worker %s: public prefixes: %s", worker.name, problem)
    if done.declared or done.withdrawn:
        logger.info("worker %s: declared %d prefixes, withdrew %d", worker.name, len(done.declared), done.withdrawn)
    return done
