"""``/health``: green only while the device computes, and never slow because it is busy."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import aiohttp
import pytest

from inference.client import WorkerClient
from inference.front.health import REUSE_SECONDS
from tests.inference.front.actors import WorkerProcess
from tests.inference.server.conftest import Start
from tests.stopped import stop

DEADLINE = 2.0  # as the fake worker is started
PROMPT = [5, 6, 7, 8, 9]


async def health(worker: WorkerProcess, session: aiohttp.ClientSession) -> tuple[int, str, float]:
    """Status, code, seconds."""
    started = time.monotonic()
    async with session.get(f"{worker.url}/health") as response:
        answer = await response.json()
    code = answer["status"] if response.status == 200 else answer["error"]["code"]
    return response.status, code, time.monotonic() - started


async def tokens(
    worker: WorkerProcess, session: aiohttp.ClientSession, count: int, first: asyncio.Event | None = None
) -> int:
    """How many came; sets ``first`` with the first of them."""
    body, seen = {"model": "fake", "prompt": PROMPT, "max_tokens": count}, 0
    async for delta in WorkerClient(worker.url, session).generate(body, worker.signer.token()):
        seen += len(delta.token_ids)
        if first is not None:
            first.set()
    return seen


async def begun(worker: WorkerProcess, session: aiohttp.ClientSession, count: int) -> asyncio.Task[int]:
    """A request that runs and has given its first token."""
    first = asyncio.Event()
    running = asyncio.create_task(tokens(worker, session, count, first))
    await asyncio.wait_for(first.wait(), 10)
    return running


async def turns(worker: WorkerProcess, session: aiohttp.ClientSession, wanted: tuple[int, str]) -> float:
    """Asks until that is the answer; seconds that this one took."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        status, code, seconds = await health(worker, session)
        if (status, code) == wanted:
            return seconds
        await asyncio.sleep(0.02)
    raise AssertionError(f"it did not turn {wanted}")


async def test_an_idle_core_that_hangs_turns_it_red_and_green_again(
    start: Start, session: aiohttp.ClientSession
) -> None:
    worker = start()
    assert (await health(worker, session))[:2] == (200, "ok")
    await asyncio.sleep(REUSE_SECONDS + 0.1)  # the last step's answer is too old to count
    stop(worker.core_pid)
    try:
        status, code, seconds = await health(worker, session)
        assert (status, code) == (503, "engine_stuck")
        assert DEADLINE - 0.1 < seconds < DEADLINE + 1
        status, code, seconds = await health(worker, session)
        assert (status, code) == (503, "engine_stuck")
        assert seconds < 0.5, "once red, it says so at once"
    finally:
        os.kill(worker.core_pid, signal.SIGCONT)
    await turns(worker, session, (200, "ok"))
    assert await tokens(worker, session, 5) == 5


async def test_a_busy_core_that_hangs_turns_it_red_by_its_last_steps_age(
    start: Start, session: aiohttp.ClientSession
) -> None:
    worker = start("--step-seconds", "0.01")
    running = await begun(worker, session, 300)
    assert (await health(worker, session))[0] == 200
    stop(worker.core_pid)
    try:
        stopped = time.monotonic()
        seconds = await turns(worker, session, (503, "engine_stuck"))
        assert DEADLINE - 0.5 < time.monotonic() - stopped < DEADLINE + 1
        assert seconds < 0.5, "it waited for a step"
    finally:
        os.kill(worker.core_pid, signal.SIGCONT)
    assert await running == 300
    assert (await health(worker, session))[0] == 200


async def test_a_core_that_hangs_at_the_first_step_turns_it_red(start: Start, session: aiohttp.ClientSession) -> None:
    worker = start()
    stop(worker.core_pid)
    running = asyncio.create_task(tokens(worker, session, 5))
    try:
        await turns(worker, session, (503, "engine_stuck"))
    finally:
        os.kill(worker.core_pid, signal.SIGCONT)
    assert await running == 5


async def test_long_steps_do_not_make_it_slow(start: Start, session: aiohttp.ClientSession) -> None:
    """Also in the moments when the core has new requests and nothing has been computed for them."""
    worker = start("--step-seconds", "0.4")
    for _ in range(3):
        running = [asyncio.create_task(tokens(worker, session, 2)) for _ in range(4)]
        await asyncio.sleep(0.05)  # idle, it would compute; that they have arrived shows nowhere before they run
        seconds = []
        while not all(task.done() for task in running):
            status, _, took = await health(worker, session)
            assert status == 200
            seconds.append(took)
            await asyncio.sleep(0.02)
        assert [await task for task in running] == [2] * 4
        assert sorted(seconds)[len(seconds) // 2] < 0.02
        assert max(seconds) < 0.25, "it waited for a step"


@pytest.mark.parametrize("busy", [True, False])
async def test_a_dead_core_is_seen_at_once(start: Start, session: aiohttp.ClientSession, busy: bool) -> None:
    worker = start("--step-seconds", "0.02")
    running = await begun(worker, session, 300) if busy else None
    os.kill(worker.core_pid, signal.SIGKILL)
    started = time.monotonic()
    if running is not None:
        (outcome,) = await asyncio.gather(running, return_exceptions=True)
        assert "core has stopped" in str(outcome)
    assert await asyncio.to_thread(worker.process.wait, 10) == 1
    assert time.monotonic() - started < 3
