"""Streams that decode while somebody else's requests load adapters, beside the same requests without a load."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass

import aiohttp
from load import stream
from worker import Setup
from workload import PROMPT_TOKENS, WORDS, encode

STEADY, SLOTS = 4, 6
"""Streams, each with an adapter of its own that stays in its slot; the other slots take what comes and goes."""

TOKENS = 400
COMING = ("a4", "a5", "a6", "a7")
"""More than there is room for: least recently used goes first, so each request of them loads its adapter."""

STAYING = COMING[: SLOTS - STEADY]


@dataclass(frozen=True, slots=True)
class Measured:
    """:param gaps: seconds between two tokens of a steady stream, the first ones left out.
    :param loads: adapters put into a slot meanwhile, as the worker counts them. :param asked: short requests.
    """

    gaps: list[float]
    loads: int
    asked: int


async def gaps(url: str, setup: Setup, *, loading: bool, seed: int) -> Measured:
    """:param loading: whether each short request's adapter has to be loaded, or is there already."""
    rng = random.Random(seed)

    def prompt() -> list[int]:
        return encode(setup.model_dir, [" ".join(rng.choices(WORDS, k=PROMPT_TOKENS))])[0]

    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=600)) as session:
        for name in STAYING:
            await stream(session, url, setup.call(prompt(), name, 1))
        steady = [
            asyncio.create_task(stream(session, url, setup.call(prompt(), f"a{row}", TOKENS))) for row in range(STEADY)
        ]
        await asyncio.sleep(1)  # past their own prompts and loads
        names = COMING if loading else STAYING
        before, asked = await _loads(session, url), 0
        while not any(task.done() for task in steady):
            await stream(session, url, setup.call(prompt(), names[asked % len(names)], 1))
            asked += 1
        loads = await _loads(session, url) - before
        answers = await asyncio.gather(*steady)
    return Measured([gap for answer in answers for gap in answer.gaps[40:-20]], loads, asked)


async def _loads(session: aiohttp.ClientSession, url: str) -> int:
    async with session.get(f"{url}/metrics") as answer:
        for line in (await answer.text()).splitlines():
            if line.startswith("loraplex:adapter_load_seconds_count"):
                return int(float(line.split()[-1]))
    raise SystemExit("loads: the worker does not count its loads")
