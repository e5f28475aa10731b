"""The disk, waited for together.

Admissions and settlements commit without waiting for it, so that their locks and connections are free at once; before
they answer, they wait here. One wait of a process serves all who came before it began.
"""

from __future__ import annotations

import asyncio
from weakref import WeakKeyDictionary

import psycopg

from tenants.db import Pool


async def on_disk(pool: Pool) -> None:
    """Returns once whatever was committed through the pool before this call is durable, and where PostgreSQL is told to
    replicate synchronously, replicated. Raises what the database raises: then nobody knows whether it is.
    """
    await _waits.setdefault(pool, _Wait()).join(pool)


class _Wait:
    """One pool's waits: one under way, and one that those who came meanwhile share."""

    def __init__(self) -> None:
        self._current: asyncio.Future[None] | None = None
        self._next: asyncio.Future[None] | None = None
        self._running: asyncio.Task[None] | None = None

    async def join(self, pool: Pool) -> None:
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
        mine = self._next
        if self._running is None:
            self._running = asyncio.create_task(self._run(pool))
        await asyncio.shield(mine)  # who leaves leaves the others waiting

    async def _run(self, pool: Pool) -> None:
        broken = False
        try:
            while self._current or self._next:  # also those who came while the connection was given back
                # A broken connection is not yet a broken server, and a wait can be asked for twice.
                broken = await self._serve(pool, may_break=not broken)
        except BaseException as error:
            for waiting in (self._current, self._next):
                if waiting is not None and not waiting.done():
                    waiting.set_exception(error)
                    waiting.exception()  # it may be that nobody waits any more
            self._current = self._next = None
            if not isinstance(error, Exception):
                raise
        finally:
            self._running = None

    async def _serve(self, pool: Pool, *, may_break: bool) -> bool:
        """Until nobody waits; whether the connection broke instead.

        One connection for as long as somebody waits: not once more through the pool's line for each wait.
        """
        connection = None
        try:
            async with pool.connection() as connection:
                while self._current or self._next:
                    if self._current is None:
                        self._current, self._next = self._next, None
                    await connection.execute("SELECT tenants_make_durable()")
                    done, self._current = self._current, None
                    if done is not None:
                        done.set_result(None)
                    may_break = True
        except psycopg.OperationalError:
            if connection is None or not connection.broken or not may_break:
                raise
            return True
        return False


_waits: WeakKeyDictionary[Pool, _Wait] = WeakKeyDictionary()
