from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

import aiohttp
import psycopg
from psycopg_pool import PoolTimeout

from fleet.router import Router
from gateway.auth import KeyCache
from gateway.errors import ApiError, error_of, invalid_key, overloaded, shutting_down
from gateway.meters import Meters
from gateway.renderers import Renderers
from gateway.watch import Held, KeyWatch
from tenants import denials, payload_log
from tenants.admission import LEASE, Admitted
from tenants.db import Pool, open_pool
from tenants.errors import Suspended
from tenants.settlement import StopReason, checkpoint

if TYPE_CHECKING:
    from gateway.chat import Run
    from gateway.sockets import SocketConsumer

logger = logging.getLogger(__name__)

IDLE_SECONDS = 4.0
"""A connection to a worker is kept so long for its next request: less than uvicorn's 5 s, which ours and vLLM's workers
are served by, or a request meets a connection that is just being closed, and a healthy worker is taken for lost."""

CHECKPOINT_SECONDS = 1.0
FIRST_CHECKPOINT_SECONDS = 0.03
"""After a run's first token: what it has come to is durable from then on, so that a crash bills its prompt. Runs that
begin meanwhile share the statement, and those that end meanwhile need none."""

CHECKPOINT_DEADLINE = 5.0
"""A database that hangs counts as one that is gone: leases run out either way."""

TRUST_SECONDS = LEASE.total_seconds() / 2
"""So long after the last renewal nothing more is handed out before the leases are renewed: beyond a lease others may
take a request's place and the reaper settles it, and what it generates from then on would be free."""


def lost() -> ApiError:
    """Its lease ran out, or somebody settled it: the request is not this process's any more."""
    return overloaded("The service lost track of this request; try again.")


_STOPPED: dict[StopReason, Callable[[], ApiError]] = {
    "revoked": lambda: invalid_key("The API key was revoked or restricted."),
    "suspended": lambda: error_of(Suspended()),
    "lost": lost,
}

GOODBYE_SECONDS = 8.0
"""So long the end of the process waits for sockets to be closed, whatever their clients read."""

MOST_RUNNING = 4096
"""Requests in flight in one process; more are refused with 503 instead of queueing without bound."""


class Services:
    """What the requests of one gateway process share. Lives from the lifespan's start to its end, on one event loop.

    :ivar sockets: open ones; each knows its ``key_id``, ``address`` and ``visit``, and ``revoke(error)`` closes it.
    """

    def __init__(self, pool: Pool, session: aiohttp.ClientSession) -> None:
        self.pool = pool
        self.session = session
        self.router = Router(pool, session)
        self.keys = KeyCache(pool)
        self.watch = KeyWatch(pool, self.keys, self._held)
        self.renderers = Renderers()
        self.meters = Meters()
        self.running: dict[UUID, Run] = {}
        self._begun: list[Run] = []
        self._some_begun = asyncio.Event()
        self._quiet = asyncio.Event()
        self._quiet.set()
        self.sockets: set[SocketConsumer] = set()
        self.draining = False
        self._background: set[asyncio.Task[Any]] = set()
        self._admissions: set[asyncio.Task[Admitted]] = set()
        self._loops: list[asyncio.Task[None]] = []
        self._renewed = _clock()  # leases were renewed then, or later
        self._renewing: asyncio.Task[bool] | None = None

    @classmethod
    async def start(cls) -> Services:
        """Opens the pool and the session, and looks at the workers once. Goes on without the database: it may come."""
        pool = open_pool()
        await pool.open(wait=False)
        # No total deadline: streams are long. A worker that does not accept within 2 s is as good as gone.
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_SECONDS),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=2.0),
        )
        services = cls(pool, session)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(5.0):
                await services.router.refresh()
        services._loops = [
            asyncio.create_task(services._for_ever(services.router.poll, "asking the workers")),
            asyncio.create_task(services._for_ever(services._checkpoints, "checkpointing")),
            asyncio.create_task(services._for_ever(services._first_checkpoints, "checkpointing what began")),
            asyncio.create_task(services._for_ever(services.watch.look, "looking after keys in use")),
            asyncio.create_task(services._for_ever(services.watch.listen, "listening for changes to keys")),
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
        await payload_log.flush(self.pool)
        await self.pool.close()

    def enter(self, run: Run) -> None:
        """An admitted run: checkpointed from now on."""
        self.running[run.request_id] = run
        self._quiet.clear()

    def begun(self, run: Run) -> None:
        """Its first token is there."""
        self._begun.append(run)
        self._some_begun.set()

    async def trusted(self) -> None:
        """Before anything is handed out. Where leases may have run out, because the database cannot be asked or this
        process stood still, it is asked first, once for all runs that wait; those that lost theirs are stopped.

        Raises :class:`ApiError` where it cannot be asked.
        """
        if not self._doubtful():
            return
        if self._renewing is None or self._renewing.done():
            self._renewing = self.spawn(self._renew())
        if not await asyncio.shield(self._renewing):
            raise _without_database()

    def _doubtful(self) -> bool:
        return _clock() - self._renewed > TRUST_SECONDS

    def leave(self, run: Run) -> None:
        """A run that is settled, or left to the reaper."""
        self.running.pop(run.request_id, None)
        if not self.running:
            self._quiet.set()

    def _held(self) -> list[Held]:
        """What callers' keys hold open in this process, requests before the sockets that they run on."""
        runs = [
            Held(run.access.key_id, run.access.address, run.access.visit, run.stop) for run in self.running.values()
        ]
        return runs + [
            Held(socket.key_id, socket.address, socket.visit, partial(self._revoke, socket)) for socket in self.sockets
        ]

    def _revoke(self, socket: SocketConsumer, error: ApiError) -> None:
        self.sockets.discard(socket)  # once is enough, also where its client reads nothing

        async def close() -> None:
            await asyncio.sleep(0.1)  # what was running on it says its last word first
            await socket.revoke(error)

        self.spawn(close())

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run ``work`` to its end whatever happens to the request that started it."""
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    def admit(self, admission: Coroutine[Any, Any, Admitted]) -> asyncio.Task[Admitted]:
        """As :meth:`spawn`; the end of this process waits for it."""
        task = self.spawn(admission)
        self._admissions.add(task)
        task.add_done_callback(self._admissions.discard)
        return task

    async def drain(self, seconds: float) -> None:
        """Take nothing new; let what runs finish, but not longer than this; then stop it and settle."""
        self.draining = True
        await self._until_quiet(seconds)
        await self.stop_all(shutting_down(), within=5.0)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GOODBYE_SECONDS):
                await asyncio.gather(*(socket.go_away() for socket in list(self.sockets)), return_exceptions=True)

    async def stop_all(self, error: ApiError, *, within: float) -> None:
        for run in list(self.running.values()):
            run.stop(error)
        await self._until_quiet(within)

    async def _until_quiet(self, seconds: float) -> None:
        """Nothing runs or is being admitted: what nobody waits for any more may be, and has to be given back."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self.running or self._admissions:
                    await (asyncio.wait(self._admissions) if self._admissions else self._quiet.wait())

    async def _checkpoints(self) -> None:
        """Each second: leases renewed, counts made durable, and whatever is no longer allowed stopped."""
        while True:
            await asyncio.sleep(CHECKPOINT_SECONDS)
            if not await self._renew() and self._doubtful():
                await self.stop_all(_without_database(), within=1.0)

    async def _renew(self) -> bool:
        begun = _clock()
        heard = await self._checkpoint(run for run in self.running.values() if run.admitted)
        if heard:
            self._renewed = begun  # the process may have stood still since the database answered
        return heard

    async def _first_checkpoints(self) -> None:
        while True:
            await self._some_begun.wait()
            await asyncio.sleep(FIRST_CHECKPOINT_SECONDS)
            begun, self._begun = self._begun, []
            self._some_begun.clear()
            # Where this fails, the next of all runs' checkpoints makes up for it. A batch's lines are never durable.
            await self._checkpoint(run for run in begun if run.durable and not run.ended)

    async def _checkpoint(self, runs: Iterable[Run]) -> bool:
        """Whether the database heard of them; those that have to end are stopped."""
        alive = list(runs)
        emitted: dict[UUID, int] = {run.request_id: run.durable for run in alive}
        cached: dict[UUID, int] = {run.request_id: run.cached for run in alive}
        try:
            async with asyncio.timeout(CHECKPOINT_DEADLINE):
                stopped = await checkpoint(self.pool, emitted, cached=cached)
        except (psycopg.Error, PoolTimeout, TimeoutError) as error:
            logger.warning("leases cannot be renewed: %s", error or type(error).__name__)
            return False
        for request_id, reason in stopped.items():
            run = self.running.get(request_id)
            # A run that ended while the statement ran is settled, not revoked.
            if run is not None and not run.ended:
                run.stop(_STOPPED[reason]())
        return True

    async def _for_ever(self, loop: Any, what: str) -> None:
        while True:
            try:
                await loop()
            except Exception:
                logger.exception("%s failed; goes on", what)
                await asyncio.sleep(1.0)


def _without_database() -> ApiError:
    return ApiError(503, "overloaded", "The service lost its database.")


def _clock() -> float:
    """Seconds, those included in which the machine was suspended, where the system counts them."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()
