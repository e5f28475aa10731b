from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import aiohttp
import psycopg
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from fleet.dialects.base import Dialect
from fleet.dialects.native import NativeDialect
from fleet.errors import NoWorker
from fleet.locality import prefix_chain
from fleet.replica import Replica

logger = logging.getLogger(__name__)

PREFIX_WEIGHT = 0.45
QUEUE_WEIGHT = 0.25
KV_WEIGHT = 0.20
RESIDENCY_WEIGHT = 0.15
"""An adapter that has to be loaded costs a queue place or two, not a whole prompt's prefill."""

FULL_QUEUE = 32
"""So many requests more than at the least loaded worker, and a queue counts as full."""

POLL_SECONDS = 1.0
ROWS_SECONDS = 2.0
RETRY_AFTER = 2.0
SEEK_SECONDS = 1.0
SEEK_PAUSE = 0.2

DIALECTS: dict[str, Callable[[str, aiohttp.ClientSession], Dialect]] = {"native": NativeDialect}

_ROWS = """
SELECT w.name, w.url, w.dialect, w.state, m.fingerprint
FROM fleet_worker w JOIN tenants_basemodel m ON m.id = w.base_model_id
WHERE w.state <> 'disabled'
"""


def score(replica: Replica, *, matched: float, digest: str | None, least: int = 0) -> float:
    """Prefix locality − queue − KV pressure + residency; higher is better.

    The longer the queue, the less a cached prefix is worth: at a full one nothing, or a prompt that many begin with
    would keep them all at one worker while others idle. Queues count from the shortest one on: where all are long, as
    at busy workers with large batches, prefixes still decide.

    Tenant priority orders requests at one worker, not workers for one request, so it has no part here.

    :param matched: share of the prompt that is probably cached there, 0 to 1.
    :param least: requests at the candidate that has the fewest.
    """
    queue = 1.0 if replica.stale else min(1.0, (replica.queued - least) / FULL_QUEUE)
    pressure = 1.0 if replica.stale else replica.probe.kv_usage
    resident = 1.0 if digest is None or digest in replica.probe.resident else 0.0
    prefix = matched * (1.0 - queue)
    return PREFIX_WEIGHT * prefix - QUEUE_WEIGHT * queue - KV_WEIGHT * pressure + RESIDENCY_WEIGHT * resident


class Router:
    """Picks the worker for a request. One per process; it knows the workers from PostgreSQL and asks them how they are.

    With the database away it goes on with the workers it knew last.
    """

    def __init__(self, pool: AsyncConnectionPool[Any], session: aiohttp.ClientSession) -> None:
        self._pool = pool
        self._session = session
        self._replicas: dict[str, Replica] = {}
        self._rows_at = float("-inf")
        self._refreshing = asyncio.Lock()
        self._seeking: asyncio.Task[None] | None = None

    @property
    def replicas(self) -> Sequence[Replica]:
        return tuple(self._replicas.values())

    async def refresh(self, *, rows_older_than: float = 0.0) -> None:
        """Read the workers anew where the last reading is older than that many seconds, and ask each how it is."""
        async with self._refreshing:
            if time.monotonic() - self._rows_at >= rows_older_than:
                await self._read_rows()
            await asyncio.gather(*(replica.refresh() for replica in self._replicas.values()))

    async def poll(self) -> None:
        """Refresh for ever; cancel it to stop."""
        while True:
            await self.refresh(rows_older_than=ROWS_SECONDS)
            await asyncio.sleep(POLL_SECONDS)

    async def _read_rows(self) -> None:
        began = time.monotonic()
        try:
            async with self._pool.connection() as connection:
                rows = await (await connection.execute(_ROWS)).fetchall()
        except (psycopg.Error, PoolTimeout) as error:
            logger.warning("the list of workers cannot be read: %s", error)
            self._rows_at = began  # those who wait must not try one after the other
            return
        self._rows_at = began
        known: dict[str, Replica] = {}
        for name, url, dialect, state, fingerprint in rows:
            replica = self._replicas.get(name)
            if replica is None or (replica.url, replica.fingerprint) != (url, fingerprint):
                make = DIALECTS.get(dialect)
                if make is None:
                    logger.error("worker %s: unknown dialect %s", name, dialect)
                    continue
                replica = Replica(name=name, url=url, fingerprint=fingerprint, dialect=make(url, self._session))
            replica.draining = state == "draining"
            known[name] = replica
        self._replicas = known

    async def candidates(
        self, *, fingerprint: str, digest: str | None, namespace: str, prompt: Sequence[int]
    ) -> list[Replica]:
        """Workers that can take the request now, best first. Raises :class:`~fleet.errors.NoWorker` when none can.

        Those that lacked the adapter a moment ago are among them only where all did.
        """
        found = self._available(fingerprint, digest) or await self._seek(fingerprint, digest)
        if not found:
            raise NoWorker("No worker can take the request at the moment; try again shortly.", RETRY_AFTER)
        found = [replica for replica in found if not replica.lacks(digest)] or found
        if len(found) == 1:
            return found
        chain = prefix_chain(fingerprint=fingerprint, digest=digest, namespace=namespace, prompt=prompt)
        whole = max(1, len(chain))
        least = min((replica.queued for replica in found if not replica.stale), default=0)

        def rank(replica: Replica) -> tuple[float, str]:
            matched = replica.prefixes.matched(chain, namespace) / whole
            return -score(replica, matched=matched, digest=digest, least=least), replica.name

        found.sort(key=rank)
        found[0].prefixes.add(chain, namespace)
        return found

    async def _seek(self, fingerprint: str, digest: str | None) -> list[Replica]:
        """Look again for a while: a worker registered or back a moment ago must not cost its first clients an error.

        However many requests seek at once, the workers are asked once at a time.
        """
        deadline = time.monotonic() + SEEK_SECONDS
        while True:
            if self._seeking is None or self._seeking.done():
                self._seeking = asyncio.create_task(self.refresh(rows_older_than=SEEK_PAUSE))
            # Not to its end: while one worker hangs, another may have been found, and the deadline holds.
            await asyncio.wait({self._seeking}, timeout=SEEK_PAUSE)
            found = self._available(fingerprint, digest)
            if found or time.monotonic() > deadline:
                return found
            if self._seeking.done():
                await asyncio.sleep(SEEK_PAUSE)

    async def newcomers(self, fingerprint: str, digest: str | None, tried: Sequence[Replica]) -> list[Replica]:
        """Workers that can take a request now and are not among those that just failed it.

        The rows are read again, since a worker that moved to another address is known only seconds later by itself;
        those that failed are not asked again, so that an error does not wait for one that hangs. Nor is anybody asked
        twice for requests that fail together: they share what one of them found.
        """
        asked = time.monotonic()
        async with self._refreshing:
            if self._rows_at < asked:  # else whoever failed just before has read them
                await self._read_rows()
            strange = [r for r in self._serving(fingerprint, digest) if r not in tried and r.asked_at < asked]
            await asyncio.gather(*(replica.refresh() for replica in strange))
        return [r for r in self._available(fingerprint, digest) if r not in tried and not r.lacks(digest)]

    def _available(self, fingerprint: str, digest: str | None) -> list[Replica]:
        return [replica for replica in self._serving(fingerprint, digest) if replica.available]

    def _serving(self, fingerprint: str, digest: str | None) -> list[Replica]:
        """Without those that serve no adapters, where one is asked for; if all are such, they say so themselves."""
        found = [replica for replica in self._replicas.values() if replica.fingerprint == fingerprint]
        return found if digest is None else [replica for replica in found if replica.probe.slots != 0] or found
