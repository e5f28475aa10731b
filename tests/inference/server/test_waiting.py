"""Requests that rightly wait for longer than a client bears silence."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from inference import client as client_module
from inference.client import WorkerClient
from inference.errors import WorkerUnavailable
from inference.front.event_stream import WAITING
from inference.protocol import Delta
from tests.inference.front.actors import WorkerProcess
from tests.inference.server.conftest import Start
from tests.stopped import stop

PLACES = 8  # of the fake core's steps
SILENCE = 1.0
BATCH = 10
"""The priority of a batch's lines: they give way to live requests."""
WORKER = ("--num-blocks", "600", "--step-seconds", "0.02", "--quiet-seconds", "0.2")
STEPS = 150
"""Of a live request: three seconds."""


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "SILENCE_SECONDS", SILENCE)


class Caller:
    """Everybody's requests to one worker.

    :ivar live: those that take the places, for :data:`STEPS`.
    """

    def __init__(self, worker: WorkerProcess, session: aiohttp.ClientSession) -> None:
        self.worker, self.session = worker, session
        self.client = WorkerClient(worker.url, session)
        self.live: list[asyncio.Task[list[Delta]]] = []

    async def ask(self, count: int, first: asyncio.Event | None = None, **grant: Any) -> list[Delta]:
        """:param first: set with the first token."""
        body, deltas = {"model": "fake", "prompt": [5, 6, 7], "max_tokens": count}, []
        async for delta in self.client.generate(body, self.worker.signer.token(**grant)):
            deltas.append(delta)
            if first is not None:
                first.set()
        return deltas

    async def begun(self, count: int, **grant: Any) -> asyncio.Task[list[Delta]]:
        first = asyncio.Event()
        running = asyncio.create_task(self.ask(count, first, **grant))
        await asyncio.wait_for(first.wait(), 10)
        return running

    async def fill(self) -> None:
        """Live requests take every place, one after the other: the queue may be short."""
        for _ in range(PLACES):
            self.live.append(await self.begun(STEPS, tenant="live"))

    async def live_answers(self) -> list[int]:
        return [tokens(await task) for task in self.live]

    @asynccontextmanager
    async def open(self, token: str, count: int = 5) -> AsyncIterator[aiohttp.ClientResponse]:
        """A batch's line; it is there when the head is."""
        body = {"model": "fake", "prompt": [5, 6, 7], "max_tokens": count, "stream": True}
        headers = {"Authorization": f"Bearer {token}"}
        async with self.session.post(f"{self.worker.url}/v1/completions", json=body, headers=headers) as response:
            yield response

    async def counts(self, running: int, waiting: int) -> None:
        """Until the worker has so many."""
        deadline = time.monotonic() + 2
        while True:
            health = await self.client.health()
            if (health["running"], health["waiting"]) == (running, waiting):
                return
            assert time.monotonic() < deadline, health
            await asyncio.sleep(0.01)


def tokens(deltas: list[Delta]) -> int:
    return sum(len(delta.token_ids) for delta in deltas)


async def test_a_request_in_the_queue_is_not_lost(start: Start, session: aiohttp.ClientSession) -> None:
    caller = Caller(start(*WORKER), session)
    await caller.fill()
    began = time.monotonic()
    deltas = await caller.ask(5, priority=BATCH)
    assert time.monotonic() - began > 2 * SILENCE, "it did not wait"
    assert tokens(deltas) == 5
    assert deltas[-1].usage is not None
    assert await caller.live_answers() == [STEPS] * PLACES


async def test_what_waits_says_so_and_then_answers(start: Start, session: aiohttp.ClientSession) -> None:
    caller = Caller(start(*WORKER), session)
    await caller.fill()
    began = time.monotonic()
    async with caller.open(caller.worker.signer.token(priority=BATCH)) as response:
        assert time.monotonic() - began < 1, "the head came with the first token"
        assert (response.status, response.content_type) == (200, "text/event-stream")
        comments, _, rest = (await response.read()).partition(b"data: ")
    assert comments == WAITING * (len(comments) // len(WAITING))
    assert len(comments) >= 5 * len(WAITING)
    assert rest.endswith(b"data: [DONE]\n\n")


async def test_a_request_that_gives_way_in_mid_stream_is_not_lost(start: Start, session: aiohttp.ClientSession) -> None:
    caller = Caller(start(*WORKER), session)
    line = await caller.begun(100, priority=BATCH)
    await caller.fill()
    await caller.counts(running=PLACES, waiting=1)
    began = time.monotonic()
    assert tokens(await line) == 100
    assert time.monotonic() - began > 2 * SILENCE, "it did not wait"


async def test_a_stream_waits_on_while_the_worker_drains(start: Start, session: aiohttp.ClientSession) -> None:
    """It takes no new requests then, but computes what it has."""
    caller = Caller(start("--step-seconds", "1.5", "--quiet-seconds", "0.2"), session)
    running = await caller.begun(2)
    caller.worker.process.send_signal(signal.SIGTERM)
    assert tokens(await running) == 2


async def test_a_refusal_in_the_queue_is_told_in_the_stream(start: Start, session: aiohttp.ClientSession) -> None:
    """A better priority takes the place of a line that waits in a full queue; its grant may try again."""
    caller = Caller(start(*WORKER, "--max-waiting", "1"), session)
    await caller.fill()
    grant = caller.worker.signer.token(priority=BATCH)
    async with caller.open(grant) as response:
        assert response.status == 200
        better = asyncio.create_task(caller.ask(5, priority=BATCH - 1))
        *_, last = (await response.text()).strip().split("\n\n")
    assert '"code":"overloaded"' in last
    assert '"retry_after":' in last
    assert tokens(await better) == 5
    async with caller.open(grant) as response:
        assert (await response.text()).endswith("data: [DONE]\n\n")


@pytest.mark.parametrize("busy", [True, False])
async def test_a_core_that_hangs_is_found_out(start: Start, session: aiohttp.ClientSession, busy: bool) -> None:
    caller = Caller(start(*WORKER), session)
    if busy:
        await caller.fill()
    else:
        stop(caller.worker.core_pid)
    line = asyncio.create_task(caller.ask(5, priority=BATCH))
    try:
        if busy:
            await caller.counts(running=PLACES, waiting=1)
            stop(caller.worker.core_pid)
        async with asyncio.timeout(8):  # else it goes on as if the core computed
            outcomes = await asyncio.gather(line, *caller.live, return_exceptions=True)
        assert all(isinstance(outcome, WorkerUnavailable) for outcome in outcomes)
        assert all("Timeout" in str(outcome) for outcome in outcomes)
    finally:
        os.kill(caller.worker.core_pid, signal.SIGCONT)


async def test_who_leaves_while_waiting_leaves_nothing(start: Start, session: aiohttp.ClientSession) -> None:
    caller = Caller(start(*WORKER), session)
    await caller.fill()
    async with caller.open(caller.worker.signer.token(priority=BATCH)) as response:
        await response.content.readexactly(len(WAITING))
        await caller.counts(running=PLACES, waiting=1)
        response.close()
        await caller.counts(running=PLACES, waiting=0)
    assert await caller.live_answers() == [STEPS] * PLACES
