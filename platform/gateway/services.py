from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any
from uuid import UUID

import aiohttp
import psycopg
from psycopg_pool import PoolTimeout

from fleet.router import Router
from gateway.auth import KeyCache
from gateway.errors import ApiError, invalid_key, overloaded, shutting_down
from gateway.renderers import Renderers
from tenants import denials
from tenants.admission import LEASE
from tenants.db import Pool, open_pool
from tenants.settlement import StopReason, checkpoint

if TYPE_CHECKING:
    from gateway.chat import Run
    from gateway.sockets import SocketConsumer

logger = logging.getLogger(__name__)

CHECKPOINT_SECONDS = 1.0
CHECKPOINT_DEADLINE = 5.0
"""A database that hangs counts as one that is gone: leases run out either way."""

_STOPPED: dict[StopReason, Callable[[], ApiError]] = {
    "revoked": lambda: invalid_key("The API key was revoked or its account suspended."),
    "lost": lambda: overloaded("The service lost track of this request; try again."),
}

MOST_RUNNING = 4096
"""Requests in flight in one process; more are refused with 503 instead of queueing without bound."""


class Services:
    """What the requests of one gateway process share. Lives from the lifespan's start to its end, on one event loop."""

    def __init__(self, pool: Pool, session: aiohttp.ClientSession) -> None:
        self.pool = pool
        self.session = session
        self.router = Router(pool, session)
        self.keys = KeyCache(pool)
        self.renderers = Renderers()
        self.running: dict[UUID, Run] = {}
        self._quiet = asyncio.Event()
        self._quiet.set()
        self.sockets: set[SocketConsumer] = set()
        self.draining = False
        self._background: set[asyncio.Task[Any]] = set()
        self._loops: list[asyncio.Task[None]] = []
        self._renewed = time.monotonic()  # when leases were last renewed

    @classmethod
    async def start(cls) -> Services:
        """Opens the pool and the session, and looks at the workers once. Goes on without the database: it may come."""
        pool = open_pool()
        await pool.open(wait=False)
        # No total deadline: streams are long. A worker that does not accept within 2 s is as good as gone.
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=30),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=2.0),
        )
        services = cls(pool, session)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(5.0):
                await services.router.refresh()
        services._loops = [
            asyncio.create_task(services._for_ever(services.router.poll, "asking the workers")),
            asyncio.create_task(services._for_ever(services._checkpoints, "checkpointing")),
        ]
        return services

    async def close(self) -> None:
        """Settles what is left, then lets everything go."""
        self.draining = True
        await self.stop_all(shutting_down(), within=5.0)
        for loop in self._loops:
            loop.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        await self.session.close()
        await denials.flush(self.pool)
        await self.pool.close()

    def enter(self, run: Run) -> None:
        """An admitted run: checkpointed from now on."""
        self.running[run.request_id] = run
        self._quiet.clear()

    def leave(self, run: Run) -> None:
        """A run that is settled, or left to the reaper."""
        self.running.pop(run.request_id, None)
        if not self.running:
            self._quiet.set()

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run ``work`` to its end whatever happens to the request that started it."""
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    async def drain(self, seconds: float) -> None:
        """Take nothing new; let what runs finish, but not longer than this; then stop it and settle."""
        self.draining = True
        await self._until_quiet(seconds)
        await self.stop_all(shutting_down(), within=5.0)
        await asyncio.gather(*(socket.go_away() for socket in list(self.sockets)), return_exceptions=True)

    async def stop_all(self, error: ApiError, *, within: float) -> None:
        for run in list(self.running.values()):
            run.stop(error)
        await self._until_quiet(within)

    async def _until_quiet(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._quiet.wait()

    async def _checkpoints(self) -> None:
        """Each second: leases renewed, counts made durable, and whatever is no longer allowed stopped."""
        while True:
            await asyncio.sleep(CHECKPOINT_SECONDS)
            emitted: dict[UUID, int] = {run.request_id: run.emitted for run in self.running.values() if run.admitted}
            try:
                async with asyncio.timeout(CHECKPOINT_DEADLINE):
                    stopped = await checkpoint(self.pool, emitted)
            except (psycopg.Error, PoolTimeout, TimeoutError) as error:
                logger.warning("leases cannot be renewed: %s", error or type(error).__name__)
                if time.monotonic() - self._renewed > LEASE.total_seconds() / 2:
                    # Beyond the lease others may take these requests' places and the reaper settles them: what they
                    # generate from then on would be free.
                    await self.stop_all(ApiError(503, "overloaded", "The service lost its database."), within=1.0)
                continue
            self._renewed = time.monotonic()
            for request_id, reason in stopped.items():
                run = self.running.get(request_id)
                # A run that ended while the statement ran is settled, not revoked.
                if run is not None and not run.ended:
                    run.stop(_STOPPED[reason]())

    async def _for_ever(self, loop: Any, what: str) -> None:
        while True:
            try:
                await loop()
            except Exception:
                logger.exception("%s failed; goes on", what)
                await asyncio.sleep(1.0)
