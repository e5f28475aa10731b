"""Waiting for the disk together: who shares a wait, who must not, and what a failure or a leaver does to the others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest

from tenants.db import Pool
from tenants.durability import on_disk


class Link:
    """A connection of :class:`Held`."""

    def __init__(self, pool: Held) -> None:
        self.pool, self.broken = pool, False

    async def execute(self, statement: str) -> None:
        assert statement == "SELECT tenants_make_durable()"
        self.pool.flushes.append(asyncio.get_running_loop().create_future())
        await self.pool.flushes[-1]


class Held:
    """A pool whose flushes end when they are told to."""

    def __init__(self) -> None:
        self.flushes: list[asyncio.Future[None]] = []
        self.links: list[Link] = []
        self.out = 0

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Link]:
        self.out += 1
        self.links.append(Link(self))
        try:
            yield self.links[-1]
        finally:
            for _ in range(5):
                await asyncio.sleep(0)  # as where somebody else holds the pool's lock
            self.out -= 1

    def break_off(self, why: str) -> None:
        """The connection in use is lost."""
        self.links[-1].broken = True
        self.flushes[-1].set_exception(psycopg.OperationalError(why))


@pytest.fixture
def pool() -> Any:
    return Held()


async def settled() -> None:
    for _ in range(30):
        await asyncio.sleep(0)


def waiting(pool: Any, count: int) -> list[asyncio.Task[None]]:
    return [asyncio.create_task(on_disk(pool)) for _ in range(count)]


async def test_those_who_come_during_a_wait_share_the_next(pool: Any) -> None:
    first = waiting(pool, 1)
    await settled()
    later = waiting(pool, 5)
    await settled()
    assert len(pool.flushes) == 1
    pool.flushes[0].set_result(None)
    await settled()
    assert first[0].done(), "its own wait is over"
    assert not any(task.done() for task in later), "that one began before what they committed"
    assert len(pool.flushes) == 2, "one for all five"
    pool.flushes[1].set_result(None)
    await asyncio.gather(*later)
    await settled()
    assert pool.out == 0, "the connection is back"


async def test_a_failure_reaches_all_who_wait_and_nobody_after_them(pool: Any) -> None:
    first = waiting(pool, 2)
    await settled()
    later = waiting(pool, 2)
    await settled()
    pool.flushes[0].set_exception(psycopg.OperationalError("gone"))
    results = await asyncio.gather(*first, *later, return_exceptions=True)
    assert [type(result) for result in results] == [psycopg.OperationalError] * 4
    [again] = waiting(pool, 1)
    await settled()
    pool.flushes[1].set_result(None)
    await again


async def test_who_comes_while_the_connection_is_given_back_is_served(pool: Any) -> None:
    first = waiting(pool, 1)
    await settled()
    pool.flushes[0].set_result(None)
    await first[0]
    assert pool.out == 1, "it is being given back"
    [late] = waiting(pool, 1)
    await settled()
    assert len(pool.flushes) == 2
    pool.flushes[1].set_result(None)
    await asyncio.wait_for(late, 1)


async def test_a_broken_connection_is_not_a_broken_server(pool: Any) -> None:
    tasks = waiting(pool, 3)
    await settled()
    pool.break_off("the connection is lost")
    await settled()
    assert not any(task.done() for task in tasks)
    assert len(pool.links) == 2, "another one"
    pool.break_off("and again")
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [str(result) for result in results] == ["and again"] * 3


async def test_who_leaves_leaves_the_others_waiting(pool: Any) -> None:
    leaver, stayer = waiting(pool, 2)
    await settled()
    leaver.cancel()
    await settled()
    assert leaver.cancelled()
    assert not stayer.done()
    pool.flushes[0].set_result(None)
    await stayer


@pytest.mark.usefixtures("orm_thread")
async def test_more_wait_than_there_are_connections(db_pool: Pool) -> None:
    await asyncio.wait_for(asyncio.gather(*(on_disk(db_pool) for _ in range(100))), timeout=10)
