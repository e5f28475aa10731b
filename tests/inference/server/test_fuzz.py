"""Nothing that arrives over HTTP makes the worker fail, hang or leak."""

from __future__ import annotations

import asyncio
import random
import time

import aiohttp
import pytest

from inference.client import WorkerClient
from tests.inference.front.actors import WorkerProcess, is_alive
from tests.inference.front.test_front import settled
from tests.inference.server.conftest import Start
from tests.inference.server.fuzzing import Fuzzer

ATTACKS = 250
LANES = 16


async def answer(worker: WorkerProcess, session: aiohttp.ClientSession) -> list[int]:
    body = {"model": "fake", "prompt": [5, 6, 7], "max_tokens": 12}
    deltas = WorkerClient(worker.url, session).generate(body, worker.signer.token())
    return [token async for delta in deltas for token in delta.token_ids]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_the_worker_survives(
    start: Start, session: aiohttp.ClientSession, capfd: pytest.CaptureFixture[str], seed: int
) -> None:
    """The fake core checks its own books whenever it is idle: a leak would end it."""
    worker = start("--num-blocks", "128")
    expected = await answer(worker, session)
    fuzzer = Fuzzer(worker, random.Random(seed))
    left = iter(range(ATTACKS))

    async def lane() -> None:
        for _ in left:
            await fuzzer.attack()

    async def health() -> None:
        while True:
            started = time.monotonic()
            async with session.get(f"{worker.url}/health") as response:
                assert response.status == 200
            assert time.monotonic() - started < 5
            await asyncio.sleep(0.05)

    watching = asyncio.create_task(health())
    async with asyncio.TaskGroup() as group:
        for _ in range(LANES):
            group.create_task(lane())
    assert not watching.done(), watching.exception()
    watching.cancel()
    await settled(worker, session)
    assert await answer(worker, session) == expected
    await settled(worker, session)
    assert worker.process.poll() is None
    assert is_alive(worker.core_pid)
    assert fuzzer.statuses[200] > ATTACKS / 25, "the attacks no longer reach the engine"
    assert fuzzer.statuses[400] > ATTACKS / 10
    said = capfd.readouterr().err
    assert "Traceback" not in said, said[-5000:]
