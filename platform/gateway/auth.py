from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any
from uuid import UUID

from gateway.errors import invalid_key
from tenants.access import Access, access_of_key, authenticate
from tenants.db import Pool
from tenants.denials import note_refusal
from tenants.errors import Denied, InvalidKey, KeyEnded
from tenants.visits import Visit

TTL_SECONDS = 3.0
"""How long an answer is believed. Admission checks the key again in its transaction, so this only spares look-ups."""

MOST_KEYS = 10_000
MOST_REFUSALS = 1_000
MOST_KEY_BYTES = 256

Headers = Iterable[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Credential:
    """What a connection came with.

    :param key: the API key, or its id for whoever proved earlier to hold it. :param address: the client's.
    :param visit: in which whoever redeemed a playground's ticket is signed in.
    """

    key: str | int = field(repr=False)
    address: str | None
    visit: Visit | None = None


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


def address_of(scope: Mapping[str, Any]) -> str | None:
    """The client's address, as the server says: behind a proxy that uvicorn was told of, what that proxy says."""
    client = scope.get("client")
    return client[0] if client else None


class KeyCache:
    """Answers of :func:`tenants.access.authenticate`, believed for :data:`TTL_SECONDS` or until :meth:`forget`; keys
    are kept as hashes only. What is refused is noted for :mod:`tenants.denials`.

    Requests that ask for the same key at the same time share one look-up.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._known: OrderedDict[bytes, tuple[float, Access]] = OrderedDict()
        self._refused: OrderedDict[bytes, tuple[float, tuple[UUID, int, str] | None]] = OrderedDict()
        self._asking: dict[bytes, asyncio.Task[Access]] = {}
        self._forgotten = 0

    async def access(self, secret: str, address: str | None) -> Access:
        """What the key may do for a caller at this address.

        Raises :class:`~tenants.errors.InvalidKey`, :class:`~tenants.errors.Denied` for a wrong address, and ``psycopg``
        errors when the database cannot be asked.
        """
        name = sha256(secret.encode()).digest()
        return self._at(await self._found(name, lambda: authenticate(self._pool, secret)), address)

    async def of(self, credential: Credential) -> Access:
        """As :meth:`access`. Whether the visit lasts is not looked at: :class:`~gateway.watch.KeyWatch` does."""
        key = credential.key
        if isinstance(key, str):
            return await self.access(key, credential.address)
        found = await self._found(b"id:%d" % key, lambda: access_of_key(self._pool, key))
        return replace(self._at(found, credential.address), visit=credential.visit)

    def forget(self, tenant_id: UUID | None = None) -> None:
        """What is known of this tenant's keys, or (``None``) of all, is out of date."""
        self._forgotten += 1
        self._refused.clear()
        if tenant_id is None:
            self._known.clear()
            return
        for name in [name for name, (_, access) in self._known.items() if access.tenant_id == tenant_id]:
            del self._known[name]

    def _at(self, access: Access, address: str | None) -> Access:
        try:
            return access.at(address)
        except Denied as error:
            note_refusal(self._pool, access.tenant_id, access.key_id, error.code, error.message)
            raise

    async def _found(self, name: bytes, ask: Callable[[], Coroutine[Any, Any, Access]]) -> Access:
        now = time.monotonic()
        known = self._known.get(name)
        if known is not None and known[0] > now:
            return known[1]
        refused = self._refused.get(name)
        try:
            if refused is not None and refused[0] > now:
                raise InvalidKey if refused[1] is None else KeyEnded(*refused[1])
            task = self._asking.get(name)
            if task is None:
                task = self._asking[name] = asyncio.create_task(self._ask(name, ask))
                task.add_done_callback(lambda done: self._asked(name, done))
            return await asyncio.shield(task)
        except KeyEnded as error:
            note_refusal(self._pool, error.tenant_id, error.key_id, error.code, str(error))
            raise

    async def _ask(self, name: bytes, ask: Callable[[], Coroutine[Any, Any, Access]]) -> Access:
        forgotten = self._forgotten
        try:
            access = await ask()
        except InvalidKey as error:
            self._known.pop(name, None)
            ended = (error.tenant_id, error.key_id, error.code) if isinstance(error, KeyEnded) else None
            self._refused[name] = (time.monotonic() + TTL_SECONDS, ended)
            if len(self._refused) > MOST_REFUSALS:
                self._refused.popitem(last=False)
            raise
        if forgotten == self._forgotten:  # else what was read may be older than what was forgotten
            self._known[name] = (time.monotonic() + TTL_SECONDS, access)
            self._known.move_to_end(name)
            if len(self._known) > MOST_KEYS:
                self._known.popitem(last=False)
        return access

    def _asked(self, name: bytes, task: asyncio.Task[Access]) -> None:
        self._asking.pop(name, None)
        if not task.cancelled():
            task.exception()  # all askers may have left; then nobody else looks at it
