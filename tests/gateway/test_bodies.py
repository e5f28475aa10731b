"""Turns of large bodies: one after the other, tenants alternately, with time for all else between."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

from gateway.bodies import LARGE_BYTES, turn
from gateway.errors import ApiError
from tenants.access import Access
from tests.gateway.house import Actor, House, Process
from tests.gateway.test_errors import call

CHAT = "/v1/chat/completions"
WORK = 0.02


def _access(actor: Actor) -> Access:
    return Access(actor.key.pk, actor.tenant.pk, actor.tenant.slug, None, {})


async def test_tenants_alternate_and_all_else_goes_on(acme: Actor, stranger: Actor) -> None:
    pool: Any = None  # asked for nothing but a suspended account's refusals
    order: list[str] = []

    async def read(access: Access) -> None:
        async with turn(pool, access, LARGE_BYTES):
            order.append(access.tenant)
            time.sleep(WORK)  # noqa: ASYNC251  # as parsing does: it holds the loop

    longest, done = 0.0, False

    async def beat() -> None:
        nonlocal longest
        while not done:
            began = time.monotonic()
            await asyncio.sleep(0)
            longest = max(longest, time.monotonic() - began)

    beating = asyncio.create_task(beat())
    began = time.monotonic()
    theirs = [asyncio.create_task(read(_access(acme))) for _ in range(8)]
    await asyncio.sleep(0)
    await asyncio.gather(read(_access(stranger)), *theirs)
    done = True
    await beating
    assert stranger.tenant.slug in order[:3]
    assert time.monotonic() - began > 8 * 4 * WORK
    assert longest < 4 * WORK


async def test_small_bodies_wait_for_nobody(acme: Actor) -> None:
    pool: Any = None
    async with turn(pool, _access(acme), LARGE_BYTES), turn(pool, _access(acme), LARGE_BYTES - 1):
        pass


async def test_too_many_of_one_tenant(acme: Actor) -> None:
    pool: Any = None

    async def read() -> None:
        async with turn(pool, _access(acme), LARGE_BYTES):
            await asyncio.sleep(0)

    ended = await asyncio.gather(*(read() for _ in range(80)), return_exceptions=True)
    refused = [error for error in ended if isinstance(error, ApiError)]
    assert [error.status for error in refused] == [503] * 16
    assert len(refused) == sum(error is not None for error in ended)


async def test_a_suspended_accounts_large_body_is_not_read(gateway: Process, house: House, acme: Actor) -> None:
    acme.tenant.state = "suspended"
    acme.tenant.save()
    for size, code in ((10, "invalid_json"), (LARGE_BYTES, "tenant_suspended")):
        status, error, _ = await call(gateway, "POST", CHAT, acme, data=json.dumps("x" * size).encode())
        assert (status, error["code"]) == (400 if code == "invalid_json" else 403, code)
