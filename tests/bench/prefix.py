"""A prompt of 1,000 tokens whose first 960 are cached, beside one of which nothing is."""

from __future__ import annotations

import random

import aiohttp
from load import Answer, stream
from worker import Setup
from workload import WORDS, encode

PROMPT, CACHED = 1000, 960


async def first_tokens(url: str, setup: Setup, repeats: int) -> tuple[list[float], list[float]]:
    """(cold, cached) seconds to the first token, in turns; ``SystemExit`` unless the cache did what is claimed."""
    cold, cached = [], []
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=600)) as session:
        for number in range(repeats + 1):
            rng = random.Random(f"prefix {number}")
            ids = encode(setup.model_dir, [" ".join(rng.choices(WORDS, k=2 * PROMPT))])[0]
            shared, one, other = ids[:CACHED], ids[CACHED:PROMPT], ids[PROMPT : 2 * PROMPT - CACHED]
            for prompt, expected, times in ((shared + one, 0, cold), (shared + other, CACHED, cached)):
                answer: Answer = await stream(session, url, setup.call(prompt, None, 2))
                if answer.cached != expected:
                    raise SystemExit(f"prefix: {answer.cached} tokens came from the cache, not {expected}")
                times.append(answer.first)
    return cold[1:], cached[1:]  # the first only warms up
