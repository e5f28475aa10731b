"""The load generator: sixteen streams at a time over HTTP, counting what the server says it generated."""

from __future__ import annotations

import asyncio
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import orjson
from workload import IN_FLIGHT


@dataclass(frozen=True, slots=True)
class Call:
    """One request: what is posted, and with which bearer token (made just before, since grants expire)."""

    body: dict[str, Any]
    bearer: Callable[[], str]


@dataclass(slots=True)
class Answer:
    """:ivar first: seconds to the first token. :ivar gaps: seconds between events that carried tokens.
    :ivar cached: prompt tokens that the server found in its cache.
    """

    tokens: int = 0
    cached: int = 0
    token_ids: list[int] = field(default_factory=list)
    first: float = 0.0
    gaps: list[float] = field(default_factory=list)


def percentile(values: Sequence[float], share: float) -> float:
    """The least value that at least ``share`` of all do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


class ServerFailed(Exception):
    """The server refused a request or broke a stream off; the message holds its words."""


async def stream(session: aiohttp.ClientSession, url: str, call: Call) -> Answer:
    answer = Answer()
    started = last = time.perf_counter()
    finished = False
    headers = {"Authorization": f"Bearer {call.bearer()}"}
    async with session.post(f"{url}/v1/completions", data=orjson.dumps(call.body), headers=headers) as response:
        if response.status != 200:
            raise ServerFailed(f"{url}: {response.status} {(await response.text())[:500]}")
        async for line in response.content:
            if not line.startswith(b"data: "):
                continue
            if line.startswith(b"data: [DONE]"):
                finished = True
                break
            event = orjson.loads(line[6:])
            if "error" in event:
                raise ServerFailed(f"{url}: {event['error']}")
            now = time.perf_counter()
            if usage := event.get("usage"):
                answer.tokens = usage["completion_tokens"]
                answer.cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
            if event["choices"]:
                if answer.first:
                    answer.gaps.append(now - last)
                else:
                    answer.first = now - started
                last = now
                answer.token_ids += event["choices"][0].get("token_ids") or []
    if not finished or not answer.tokens:
        raise ServerFailed(f"{url}: the stream ended without [DONE] or without usage")
    return answer


@dataclass(frozen=True, slots=True)
class Load:
    """:ivar tokens_per_second: generated tokens over wall time, first request sent to last stream ended."""

    tokens_per_second: float
    first_token_p50: float
    first_token_p95: float
    gap_p50: float
    answers: list[Answer]


async def drive(url: str, calls: Sequence[Call], in_flight: int = IN_FLIGHT) -> Load:
    """Send all ``calls``, ``in_flight`` at a time; the first failure fails the whole."""
    waiting = list(enumerate(calls))[::-1]
    answers: list[Answer] = [Answer()] * len(calls)
    timeout = aiohttp.ClientTimeout(total=600)
    connector = aiohttp.TCPConnector(limit=0)
    headers = {"Content-Type": "application/json"}
    async with aiohttp.ClientSession(timeout=timeout, connector=connector, headers=headers) as session:

        async def lane() -> None:
            while waiting:
                index, call = waiting.pop()
                answers[index] = await stream(session, url, call)

        started = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(in_flight):
                group.create_task(lane())
        seconds = time.perf_counter() - started
    firsts = [answer.first for answer in answers]
    gaps = [gap for answer in answers for gap in answer.gaps] or [0.0]
    return Load(
        tokens_per_second=sum(answer.tokens for answer in answers) / seconds,
        first_token_p50=statistics.median(firsts),
        first_token_p95=percentile(firsts, 0.95),
        gap_p50=statistics.median(gaps),
        answers=answers,
    )
