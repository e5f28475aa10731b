"""Payloads and refusals reach the database although the process ends while they are being written."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import pytest
from asgiref.sync import sync_to_async

from tenants import denials, payload_log, payloads
from tenants.actors import Actor
from tenants.admission import admit
from tenants.db import Pool
from tenants.models import Denial, Payload
from tenants.payload_log import Kept
from tenants.write_behind import WriteBehind

pytestmark = pytest.mark.usefixtures("grant_keys", "orm_thread")


class Slow:
    """A pool that takes a while to give a connection, as a busy one does."""

    def __init__(self, pool: Pool) -> None:
        self.pool, self.asked = pool, asyncio.Event()

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Any]:
        self.asked.set()
        await asyncio.sleep(0.3)
        async with self.pool.connection() as connection:
            yield connection


async def test_a_payload_that_is_being_written_is_waited_for(
    world: Any, db_pool: Pool, new_id: Callable[[], UUID], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(payload_log, "FLUSH_SECONDS", 0.01)
    acme = await sync_to_async(world.actor)("acme")
    await sync_to_async(payloads.turn_on)(Actor("member", "ada"), acme.tenant, days=7)
    request_id, slow = new_id(), Slow(db_pool)
    await admit(
        db_pool,
        request_id=request_id,
        access=acme.access(),
        model=world.served(),
        prompt_tokens=10,
        max_tokens=10,
    )
    payload_log.note(slow, request_id, acme.tenant.pk, Kept.of([("user", "2 + 2?")]))  # type: ignore[arg-type]
    await slow.asked.wait()
    await payload_log.flush(slow)  # type: ignore[arg-type]
    assert await sync_to_async(Payload.objects.unscoped().count)() == 1


async def test_a_refusal_that_is_being_written_is_waited_for(
    world: Any, db_pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(denials, "FLUSH_SECONDS", 0.01)
    acme, slow = await sync_to_async(world.actor)("acme"), Slow(db_pool)
    denials.note_refusal(slow, acme.tenant.pk, acme.key.pk, "invalid_value", "No.")  # type: ignore[arg-type]
    await slow.asked.wait()
    await denials.flush(slow)  # type: ignore[arg-type]
    assert await sync_to_async(Denial.objects.filter(tenant=acme.tenant).count)() == 1


class Counting(WriteBehind):
    """Writes take until they are let go."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = self.most = self.now = 0
        self.go = asyncio.Event()

    async def write(self, pool: Pool) -> None:
        self.begun += 1
        self.now += 1
        self.most = max(self.most, self.now)
        await self.go.wait()
        self.now -= 1


async def test_writes_do_not_pile_up_while_the_database_is_slow(db_pool: Pool) -> None:
    log = Counting()
    for _ in range(20):
        log.soon(db_pool, 0.0)
        await asyncio.sleep(0.005)
    assert (log.begun, len(log._tasks)) == (1, 2), "one writes, one waits for it"
    log.go.set()
    await log.flush(db_pool)
    assert (log.begun, log.most, log.now) == (3, 1, 0)
