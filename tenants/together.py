"""One statement for all who wait: what several requests ask of the database goes there in one transaction.

Most of what an admission or a settlement costs, in this process and in PostgreSQL, is the statement around it. So while
one is under way those who come meanwhile wait, and go with the next; who comes alone goes at once.

No tenant waits for another. A statement of several tenants has no patience: it does what it can without waiting for
anybody's lock (but up to 100 ms for an account that a settlement has). Whom it leaves out goes again, after
:data:`TRIES` in a lane of its tenant's own: there waiting keeps nobody else, and what one tenant asks for still goes
together.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal, get_args
from uuid import UUID
from weakref import WeakKeyDictionary

import orjson
import psycopg
from psycopg.errors import LockNotAvailable, QueryCanceled
from psycopg.rows import TupleRow
from psycopg_pool import PoolTimeout

from tenants.db import Pool

logger = logging.getLogger(__name__)

MOST = 8
"""Of one statement: locks are kept until its last one is done. With 16 callers 8 were quickest (1,900 a second; with 16
1,770): while one half's statement runs, the other half is at work here or waits for the disk.
"""

TRIES = 3
"""Without patience. Who was left out has mostly met another statement of this very process, which is over soon."""

_TOO_LONG = LockNotAvailable | QueryCanceled

PLACE_SECONDS = 5.0
"""As long as a pool waits for a connection."""


@dataclass(eq=False, slots=True)
class _Asked:
    """:ivar alone: goes in no statement with others: such a one failed, and any of them may have been the reason."""

    party: UUID
    request: str
    item: bytes
    answer: asyncio.Future[Any]
    tries: int = 0
    alone: bool = False

    def fail(self, error: BaseException) -> None:
        if self.answer.done():  # nobody waits any more
            return
        if isinstance(error, asyncio.CancelledError):
            self.answer.cancel()
        else:
            self.answer.set_exception(error)


Function = Literal["tenants_admit_together", "tenants_settle_together"]
"""Of ``tenants/sql/together.sql``."""


async def ask(pool: Pool, function: Function, party: UUID, item: dict[str, Any]) -> Any:
    """The function's answer to ``item``, whose ``request`` is the request's id. Raises what the database raises.

    Who is cancelled before the item was sent has asked nothing; afterwards it may be done without anybody knowing.

    :param party: whose requests wait for each other anyway: the tenant.
    """
    as_json = orjson.dumps(item, default=str)  # what cannot be written so is its caller's error alone
    asked = _Asked(party, str(item["request"]), as_json, asyncio.get_running_loop().create_future())
    lanes = _lanes.get(pool)
    if lanes is None:
        # Less than half of the connections: whoever has many tenants that wait leaves the rest to others.
        places = asyncio.Semaphore(max(1, pool.max_size // 2 - 1))
        lanes = _lanes[pool] = {function: _Lanes(function, places) for function in get_args(Function)}
    lanes[function].of(asked).join(pool, asked)
    return await asked.answer


class _Lanes:
    """Those in which one function is asked for.

    :param places: so many tenants at once have a connection to wait on by themselves, in all functions together.
    """

    def __init__(self, function: Function, places: asyncio.Semaphore) -> None:
        self.statement = f"SELECT {function}(%s, %s)"
        self._places = places
        self._shared = _Lane(self, None)
        self._own: dict[UUID, _Lane] = {}

    def of(self, asked: _Asked) -> _Lane:
        """Its tenant's own where there is one, or where it needs one; else that of all."""
        own = self._own.get(asked.party)
        if own is None and (asked.alone or asked.tries >= TRIES):
            # What the tenant still has in the lane of all would meet the same there.
            own = self._own[asked.party] = _Lane(self, asked.party, self._shared.leave(asked.party))
        return own or self._shared

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """For one statement of a tenant's own. Raises ``PoolTimeout`` where none is free in time."""
        try:
            async with asyncio.timeout(PLACE_SECONDS):
                await self._places.acquire()
        except TimeoutError:
            raise PoolTimeout(f"no place to wait on after {PLACE_SECONDS} s") from None
        try:
            yield
        finally:
            self._places.release()

    def close(self, party: UUID) -> None:
        """Nobody waits in the tenant's own lane any more."""
        del self._own[party]


class _Lane:
    """One statement after another, each for those who came during the one before. Parties take turns.

    :param party: whose own it is, and so one with patience; ``None``: that of all.
    """

    def __init__(self, lanes: _Lanes, party: UUID | None, waiting: Iterable[_Asked] = ()) -> None:
        self._lanes = lanes
        self._party = party
        self._waiting: dict[UUID, deque[_Asked]] = {}
        for asked in waiting:
            self._waiting.setdefault(asked.party, deque()).append(asked)
        self._running: asyncio.Task[None] | None = None

    def leave(self, party: UUID) -> Iterable[_Asked]:
        """Those of one party wait here no more."""
        return self._waiting.pop(party, ())

    def join(self, pool: Pool, asked: _Asked) -> None:
        self._waiting.setdefault(asked.party, deque()).append(asked)
        if self._running is None:
            self._running = asyncio.create_task(self._run(pool))

    async def _run(self, pool: Pool) -> None:
        try:
            while self._waiting:  # also those who came while the connection was given back
                if self._party is None:
                    await self._serve(pool)
                else:
                    async with self._lanes.place():
                        await self._serve(pool)
        except BaseException as error:
            for queue in self._waiting.values():
                for asked in queue:
                    asked.fail(error)
            self._waiting.clear()
            if not isinstance(error, Exception):
                raise
        finally:
            self._running = None
            if self._party is not None:
                self._lanes.close(self._party)

    async def _serve(self, pool: Pool) -> None:
        """Until nobody waits, or the connection breaks: that need not be a broken server. In a tenant's own lane one
        statement: others wait for its place.
        """
        async with pool.connection() as connection:
            while not connection.broken and (batch := self._next()):
                try:
                    await self._send(pool, connection, batch)
                except BaseException as error:
                    for asked in batch:
                        asked.fail(error)
                    raise
                if self._party is not None:
                    break

    def _next(self) -> list[_Asked]:
        """Those who go together, in the order of their requests' ids: so they are locked, and mostly came."""
        batch: list[_Asked] = []
        while self._waiting and len(batch) < MOST:
            party = next(iter(self._waiting))
            queue = self._waiting.pop(party)
            asked = queue.popleft()
            if asked.alone and batch:
                queue.appendleft(asked)
                self._waiting[party] = queue
                break
            if queue:
                self._waiting[party] = queue
            if not asked.answer.done():
                batch.append(asked)
                if asked.alone:
                    break
        return sorted(batch, key=lambda asked: asked.request)

    async def _send(self, pool: Pool, connection: psycopg.AsyncConnection[TupleRow], batch: list[_Asked]) -> None:
        items = f"[{b','.join(asked.item for asked in batch).decode()}]"
        try:
            cursor = await connection.execute(self._lanes.statement, (items, self._party is not None))
            row = await cursor.fetchone()
        except psycopg.Error as error:
            self._failed(pool, connection, batch, error)
            return
        assert row is not None, "a function returns one row"
        for asked, answer in zip(batch, row[0], strict=True):
            if answer is None:
                asked.tries += 1
                self._lanes.of(asked).join(pool, asked)
            elif not asked.answer.done():
                asked.answer.set_result(answer)

    def _failed(
        self, pool: Pool, connection: psycopg.AsyncConnection[TupleRow], batch: list[_Asked], error: psycopg.Error
    ) -> None:
        """Nothing was done, unless the connection broke: then nobody knows. What somebody waited for too long is its
        tenant's, whose requests go on together; any other fault is one request's, and each goes alone.
        """
        if connection.broken or (self._party is not None and (len(batch) == 1 or isinstance(error, _TOO_LONG))):
            for asked in batch:
                asked.fail(error)
            return
        logger.warning("%s of %d requests failed, they go apart: %s", self._lanes.statement, len(batch), error)
        for asked in batch:
            if isinstance(error, _TOO_LONG):
                asked.tries = TRIES
            else:
                asked.alone = True
            self._lanes.of(asked).join(pool, asked)


_lanes: WeakKeyDictionary[Pool, dict[str, _Lanes]] = WeakKeyDictionary()
