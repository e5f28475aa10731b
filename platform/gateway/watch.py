from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

import psycopg
from django.conf import settings
from psycopg_pool import PoolTimeout

from gateway.auth import KeyCache
from gateway.errors import ApiError, error_of, invalid_key, signed_out
from tenants import addresses
from tenants.access import address_denied
from tenants.db import Pool
from tenants.visits import Visit, lasting

logger = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
PAUSE_SECONDS = 0.1
"""At least, however often somebody changes keys."""

CHANNEL = "loraplex_access"
"""Where triggers name the tenant whose keys changed (``tenants/sql/guards_keys.sql``)."""

AGAIN_SECONDS = 5.0
"""Between two attempts to listen."""

_ASK = """
SELECT k.id, k.revoked_at IS NULL AND (k.expires_at IS NULL OR k.expires_at > now()), k.allowed_addresses
  FROM tenants_apikey k WHERE k.id = ANY (%s)
"""


@dataclass(frozen=True, slots=True)
class Held:
    """What a key holds open: a socket, a running request.

    :param address: where its client is; ``None``: nobody asked.
    :param visit: in which its client is signed in, if it came with a playground's ticket.
    :param end: ends it without waiting; its client may be told the error.
    """

    key_id: int
    address: str | None
    visit: Visit | None
    end: Callable[[ApiError], object]


class KeyWatch:
    """Ends what a key holds open once the key may no longer do so, or whoever came with it is signed out or lost the
    right, within about a second; and drops what is remembered of keys as soon as PostgreSQL tells of a change.

    The telling only makes it faster: a connection that breaks loses notifications, and a pooler between may not pass
    them on. Without it, what is remembered expires by itself (:data:`gateway.auth.TTL_SECONDS`).

    :param held: everything that is held open now.
    """

    def __init__(self, pool: Pool, keys: KeyCache, held: Callable[[], list[Held]]) -> None:
        self._pool = pool
        self._keys = keys
        self._held = held
        self._changed = asyncio.Event()

    async def look(self) -> None:
        """Each second, or as soon as something changed: one statement for all keys that hold anything, and one
        for all who are signed in.
        """
        while True:
            try:
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._changed.wait()
            except TimeoutError:
                pass
            self._changed.clear()
            held = self._held()
            if not held:
                continue
            try:
                await self._end_lost(held)
            except (psycopg.Error, PoolTimeout, TimeoutError) as error:
                logger.warning("keys in use cannot be looked up: %s", error or type(error).__name__)
            await asyncio.sleep(PAUSE_SECONDS)

    async def _end_lost(self, held: list[Held]) -> None:
        async with asyncio.timeout(5.0), self._pool.connection() as connection:
            ids = list({one.key_id for one in held})
            rows = await (await connection.execute(_ASK, (ids,))).fetchall()
            visits = {(one.key_id, one.visit) for one in held if one.visit is not None}
            last = await lasting(connection, visits) if visits else frozenset()
        good = {key_id: addresses.networks(allowed) for key_id, usable, allowed in rows if usable}
        for one in held:
            if one.key_id not in good:
                one.end(invalid_key("The API key was revoked or has expired."))
            elif one.visit is not None and (one.key_id, one.visit) not in last:
                one.end(signed_out())
            elif one.address is not None and not addresses.allowed(good[one.key_id], one.address):
                one.end(error_of(address_denied(one.address)))

    async def listen(self) -> None:
        """Drop what is remembered of a tenant when PostgreSQL tells of it. On a connection of its own."""
        while True:
            try:
                await self._listen()
            except psycopg.Error as error:
                logger.info("not told of changes to keys, which take up to 3 s now: %s", error)
            self._keys.forget()  # whatever was told meanwhile is lost
            await asyncio.sleep(AGAIN_SECONDS)

    async def _listen(self) -> None:
        async with await psycopg.AsyncConnection.connect(
            settings.DATABASE_DSN, autocommit=True, application_name="loraplex listener", connect_timeout=5
        ) as connection:
            await connection.execute(f"LISTEN {CHANNEL}")
            self._keys.forget()
            async for notice in connection.notifies():
                try:
                    self._keys.forget(UUID(notice.payload))
                except ValueError:  # anybody who may connect may notify
                    self._keys.forget()
                self._changed.set()
