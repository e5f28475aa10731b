"""Two tenants at one worker: a quiet one, and a loud one that sends twenty times as much.

Both send at random moments whatever the answers do, and the loud one sends far more than the worker can compute, so
that its queue is full. What is compared is the time to the quiet one's first tokens: in that crowd, and with the same
arrivals alone at a worker of half the rows, which is its share.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

import aiohttp
from load import Call, ServerFailed, stream
from worker import Setup
from workload import WORDS, encode

QUIET_PER_SECOND = 1.0
TIMES = 20
ROWS = 16
GRACE_SECONDS = 120.0
"""How long the quiet tenant's answers may take after the last request was sent; the loud one's are then dropped."""


@dataclass(slots=True)
class Heard:
    """:ivar first: seconds to the first token of each request that was answered. :ivar refused: how many were not."""

    first: list[float] = field(default_factory=list)
    tokens: int = 0
    refused: int = 0


def arrivals(setup: Setup, tenant: str, rate: float, seconds: float, seed: int) -> Iterator[tuple[float, Call]]:
    """(seconds from the start, call): a Poisson process, the same for the same seed.

    Prompts of 30 to 110 words that share no prefix, 16 to 96 output tokens.
    """
    rng = random.Random(f"{tenant}{seed}")
    moment = rng.expovariate(rate)
    while moment < seconds:
        text = " ".join(rng.choices(WORDS, k=rng.randint(30, 110)))
        yield moment, setup.call(encode(setup.model_dir, [text])[0], None, rng.randint(16, 96), tenant)
        moment += rng.expovariate(rate)


async def crowd(url: str, setup: Setup, *, seconds: float, times: int, seed: int) -> tuple[Heard, Heard]:
    """What the quiet tenant heard and what the loud one, who sends ``times`` as much (0: is not there)."""
    quiet, loud = Heard(), Heard()
    calls = [(moment, call, quiet) for moment, call in arrivals(setup, "quiet", QUIET_PER_SECOND, seconds, seed)]
    if times:
        rate = times * QUIET_PER_SECOND
        calls += [(moment, call, loud) for moment, call in arrivals(setup, "loud", rate, seconds, seed)]
    calls.sort(key=lambda each: each[0])
    timeout = aiohttp.ClientTimeout(total=600)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:
        loop = asyncio.get_running_loop()
        started = loop.time()
        running, waited_for = set[asyncio.Task[None]](), set[asyncio.Task[None]]()
        for moment, call, heard in calls:
            await asyncio.sleep(started + moment - loop.time())
            task = asyncio.create_task(_one(session, url, call, heard, may_be_refused=heard is loud))
            running.add(task)
            if heard is quiet:
                waited_for.add(task)
        if waited_for:
            await asyncio.wait(waited_for, timeout=GRACE_SECONDS)
        for task in running:
            task.cancel()
        for outcome in await asyncio.gather(*running, return_exceptions=True):
            if isinstance(outcome, Exception):
                raise outcome
    if len(quiet.first) != sum(heard is quiet for _, _, heard in calls):
        raise SystemExit(f"fairness: only {len(quiet.first)} of the quiet tenant's requests were answered")
    return quiet, loud


async def _one(session: aiohttp.ClientSession, url: str, call: Call, heard: Heard, *, may_be_refused: bool) -> None:
    try:
        answer = await stream(session, url, call)
    except ServerFailed as error:
        if not may_be_refused or "overloaded" not in str(error):
            raise
        heard.refused += 1
        return
    heard.first.append(answer.first)
    heard.tokens += answer.tokens
