from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Iterable
from hashlib import sha256

from gateway.errors import invalid_key
from tenants.access import Access, access_of_key, authenticate
from tenants.db import Pool
from tenants.errors import InvalidKey

TTL_SECONDS = 3.0
"""How long an answer is believed. Admission checks the key again in its transaction, so this only spares look-ups."""

MOST_KEYS = 10_000
MOST_REFUSALS = 1_000
MOST_KEY_BYTES = 256

Headers = Iterable[tuple[bytes, bytes]]


def bearer(headers: Headers) -> str:
    """The API key of a request. Raises :class:`~gateway.errors.ApiError` 401, never with the key in its words."""
    values = [value for name, value in headers if name == b"authorization"]
    if not values:
        raise invalid_key("No API key was sent. Send it as: Authorization: Bearer <key>")
    scheme, _, key = values[0].strip().partition(b" ")
    key = key.strip()
    if len(values) > 1 or scheme.lower() != b"bearer" or not key or len(key) > MOST_KEY_BYTES or not key.isascii():
        raise invalid_key("The Authorization header has to be: Bearer <key>")
    return key.decode("ascii")


class KeyCache:
    """Answers of :func:`tenants.access.authenticate`, believed for :data:`TTL_SECONDS`; keys are kept as hashes only.

    Requests that ask for the same key at the same time share one look-up.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._known: OrderedDict[bytes, tuple[float, Access]] = OrderedDict()
        self._refused: OrderedDict[bytes, float] = OrderedDict()
        self._asking: dict[bytes, asyncio.Task[Access]] = {}

    async def access(self, secret: str) -> Access:
        """Raises :class:`~tenants.errors.InvalidKey`; ``psycopg`` errors when the database cannot be asked."""
        name = sha256(secret.encode()).digest()
        now = time.monotonic()
        known = self._known.get(name)
        if known is not None and known[0] > now:
            return known[1]
        if self._refused.get(name, 0.0) > now:
            raise InvalidKey
        task = self._asking.get(name)
        if task is None:
            task = asyncio.create_task(self._ask(name, secret))
            self._asking[name] = task
            task.add_done_callback(lambda done: self._asked(name, done))
        return await asyncio.shield(task)

    async def of_key(self, key_id: int) -> Access:
        """As :meth:`access`, for whoever redeemed a ticket of the key."""
        name = b"id:%d" % key_id
        known = self._known.get(name)
        if known is not None and known[0] > time.monotonic():
            return known[1]
        access = await access_of_key(self._pool, key_id)
        self._remember(name, access)
        return access

    async def _ask(self, name: bytes, secret: str) -> Access:
        try:
            access = await authenticate(self._pool, secret)
        except InvalidKey:
            self._known.pop(name, None)
            self._refused[name] = time.monotonic() + TTL_SECONDS
            if len(self._refused) > MOST_REFUSALS:
                self._refused.popitem(last=False)
            raise
        self._remember(name, access)
        return access

    def _asked(self, name: bytes, task: asyncio.Task[Access]) -> None:
        self._asking.pop(name, None)
        if not task.cancelled():
            task.exception()  # all askers may have left; then nobody else looks at it

    def _remember(self, name: bytes, access: Access) -> None:
        self._known[name] = (time.monotonic() + TTL_SECONDS, access)
        self._known.move_to_end(name)
        if len(self._known) > MOST_KEYS:
            self._known.popitem(last=False)
