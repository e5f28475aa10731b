"""Whose large body is read next. JSON and its checks hold the event loop, and with it everybody's streams; they come
before admission, so no limit of the tenant's counts them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from weakref import WeakKeyDictionary

from gateway.turns import Share, Turns
from tenants.access import Access
from tenants.db import Pool
from tenants.denials import note_refusal
from tenants.errors import Suspended

LARGE_BYTES = 16 * 1024
"""Whatever is in a smaller one, reading it takes less than the rest of a request does."""

LONG_SECONDS = 0.002
REST = 3.0
"""After a body that took longer than :data:`LONG_SECONDS`, none is begun for so many times as long, even where its
client leaves: three quarters of the loop's time are left for what runs."""

ALL = Share(1, 512)
OF_ONE_TENANT = Share(1, 64)

_TURNS: WeakKeyDictionary[asyncio.AbstractEventLoop, Turns] = WeakKeyDictionary()
"""Of each event loop: it is its time that is shared out."""

_resting: set[asyncio.Task[None]] = set()


@asynccontextmanager
async def turn(pool: Pool, access: Access, size: int) -> AsyncIterator[None]:
    """Time to read a body of ``size`` bytes, which is done without waiting for anything: large ones one after the
    other, tenants by turns.

    Raises :class:`~tenants.errors.Suspended` for a large body of an account that is, and
    :class:`~gateway.errors.ApiError` 503 where too many of the tenant's wait.
    """
    if size < LARGE_BYTES:
        yield
        return
    if access.suspended:
        error = Suspended()
        note_refusal(pool, access.tenant_id, access.key_id, error.code, str(error))
        raise error
    async with AsyncExitStack() as place:
        await place.enter_async_context(_turns().taken(str(access.tenant_id)))
        began = time.monotonic()
        try:
            yield
        finally:
            took = time.monotonic() - began
            if took >= LONG_SECONDS:
                resting = asyncio.create_task(_rest(place.pop_all(), took * REST))
                _resting.add(resting)
                resting.add_done_callback(_resting.discard)


def _turns() -> Turns:
    loop = asyncio.get_running_loop()
    turns = _TURNS.get(loop)
    if turns is None:
        turns = _TURNS[loop] = Turns(ALL, OF_ONE_TENANT)
    return turns


async def _rest(place: AsyncExitStack, seconds: float) -> None:
    async with place:
        await asyncio.sleep(seconds)
