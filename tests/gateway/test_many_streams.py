"""Hundreds of streams through one gateway process: a few threads, and no connection to the database for a stream."""

from __future__ import annotations

import asyncio
import statistics
from pathlib import Path
from typing import Any

import aiohttp
import psycopg
import pytest
from django.conf import settings

from tests.gateway.house import Actor, House, Process, started_gateway, started_stub

pytestmark = pytest.mark.slow

STREAMS, TOKENS, INTERVAL = 300, 20, 0.5
MOST_THREADS = 50
MOST_CONNECTIONS = 10
"""Of the gateway's: those of its pool, and one that listens."""


def threads_of(process: Process) -> int:
    text = Path(f"/proc/{process.process.pid}/status").read_text()
    return int(text.partition("Threads:")[2].split()[0])


class Connections:
    """Those to the database that came since this was made."""

    def __init__(self, asking: psycopg.Connection[tuple]) -> None:
        self._asking = asking
        self._before: list[int] = []
        self._before = [pid for pid, _ in self.now()]

    def now(self) -> list[tuple[int, str]]:
        """Each with its state."""
        query = """SELECT pid, state FROM pg_stat_activity
                    WHERE application_name = 'loraplex' AND pid <> ALL (%s::int[])"""
        return self._asking.execute(query, [self._before]).fetchall()


async def stream(asked: Any, begun: asyncio.Semaphore) -> int:
    """How many tokens came. :param begun: released with the first."""
    tokens, text = 0, b""
    async with asked as response:
        assert response.status == 200, await response.text()
        while chunk := await response.content.readany():
            if not text:
                begun.release()
            tokens += chunk.count(b'"text":" ')
            text = (text + chunk)[-32:]
    assert text.endswith(b"data: [DONE]\n\n")
    return tokens


async def looked_at(gateway: Process, connections: Connections) -> list[int]:
    """How many connections were busy, for two seconds."""
    busy = []
    for _ in range(40):
        found = connections.now()
        assert len(found) <= MOST_CONNECTIONS, found
        assert threads_of(gateway) < MOST_THREADS
        busy.append(sum(state != "idle" for _, state in found))
        await asyncio.sleep(0.05)
    return busy


async def test_hundreds_of_streams_take_few_threads_and_no_connections(
    bare_house: House, acme: Actor, tmp_path: Path
) -> None:
    body = {"model": bare_house.base.name, "prompt": "hello", "max_tokens": TOKENS, "stream": True}
    with (
        psycopg.connect(settings.DATABASE_DSN, autocommit=True) as asking,
        started_stub(tmp_path, bare_house.fingerprint, INTERVAL) as stub,
    ):
        bare_house.worker(stub.url)
        connections, begun = Connections(asking), asyncio.Semaphore(0)
        with started_gateway(tmp_path) as gateway:
            url = f"{gateway.url}/v1/completions"
            async with (
                aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session,
                asyncio.TaskGroup() as group,
            ):
                asked = [session.post(url, json=body, headers=acme.headers) for _ in range(STREAMS)]
                streams = [group.create_task(stream(one, begun)) for one in asked]
                async with asyncio.timeout(20):
                    for _ in range(STREAMS):
                        await begun.acquire()
                busy = await looked_at(gateway, connections)
                assert not any(task.done() for task in streams), "all of them ran while it was looked at"
    assert statistics.median(busy) == 0, "except for what is written each second of all streams together"
    assert max(busy) < MOST_CONNECTIONS / 2
    billed = [row.completion_tokens for row in bare_house.ledger(acme)]
    assert [task.result() for task in streams] == billed == [TOKENS] * STREAMS
