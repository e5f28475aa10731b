"""A gateway process that stood still for longer than its leases: what others settled meanwhile is not handed out."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import aiohttp
import pytest

from tenants.db import open_pool
from tenants.settlement import reap
from tests.gateway.house import Actor, House, Process, started_gateway
from tests.stopped import stop

pytestmark = pytest.mark.slow
CHAT = "/v1/chat/completions"


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Process]:
    with started_gateway(tmp_path, TRUST_SECONDS="2.5") as process:
        yield process


async def stand_still(own: Process, seconds: float) -> None:
    """So long, while the lease of what runs there runs out and somebody settles it."""
    stop(own.process.pid)
    try:
        async with open_pool(min_size=1) as pool:
            assert await reap(pool, now=datetime.now(UTC) + timedelta(seconds=60)) == 1
        await asyncio.sleep(seconds)
    finally:
        own.process.send_signal(signal.SIGCONT)


def asking(house: House, max_tokens: int, *, stream: bool) -> dict[str, object]:
    messages = [{"role": "user", "content": "hi"}]
    return {"model": house.base.name, "messages": messages, "stream": stream, "max_tokens": max_tokens}


async def test_a_stream_ends_with_what_was_billed(house: House, acme: Actor, own: Process) -> None:
    async with (
        aiohttp.ClientSession() as session,
        session.post(own.url + CHAT, json=asking(house, 450, stream=True), headers=acme.headers) as answer,
    ):
        before = (await answer.content.readuntil(b" 60")).count(b"data: ")
        await stand_still(own, 3.5)  # the worker goes on: its tokens wait in the connection
        rest = await answer.text()
    row = house.one_row(acme)
    assert row.outcome == "abandoned"
    assert row.completion_tokens >= 20
    assert '"error"' in rest
    assert "lost track" in rest
    assert "[DONE]" not in rest
    handed_out = before + rest.count("data: ")
    assert handed_out <= row.completion_tokens + 120, "beside those of about a second and what was on its way"
    assert "data: " in rest


async def test_a_whole_answer_that_others_settled_is_an_error(house: House, acme: Actor, own: Process) -> None:
    """The process stands still for less than it trusts its leases, and the answer is whole when it goes on."""
    async with aiohttp.ClientSession() as session:
        asked = asyncio.create_task(
            session.post(own.url + CHAT, json=asking(house, 60, stream=False), headers=acme.headers)
        )
        async with asyncio.timeout(10):
            while house.running(acme) == 0:  # noqa: ASYNC110 - the database sets no event
                await asyncio.sleep(0.01)
        await stand_still(own, 1.5)
        answer = await asked
        body = await answer.json()
    assert answer.status == 503
    assert "lost track" in body["error"]["message"]
    assert house.one_row(acme).outcome == "abandoned"


async def test_one_that_stood_still_and_kept_its_lease_goes_on(house: House, acme: Actor, own: Process) -> None:
    async with (
        aiohttp.ClientSession() as session,
        session.post(own.url + CHAT, json=asking(house, 200, stream=True), headers=acme.headers) as answer,
    ):
        await answer.content.readuntil(b" 20")
        stop(own.process.pid)
        await asyncio.sleep(3.5)
        own.process.send_signal(signal.SIGCONT)
        assert (await answer.text()).endswith("data: [DONE]\n\n")
    row = house.one_row(acme)
    assert (row.outcome, row.completion_tokens) == ("completed", 200)
