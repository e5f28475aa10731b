"""A database's clock that was wrong for a while and is right again: nobody is shut out, and nothing is given twice."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from asgiref.sync import sync_to_async

from tenants.db import Pool
from tenants.errors import Denied
from tenants.settlement import checkpoint, reap
from tests.tenants.test_days import accounts, balances, settled

T = datetime(2030, 2, 10, 12, tzinfo=UTC)
SIZE = {"prompt_tokens": 10, "max_tokens": 10}
MINUTE = timedelta(minutes=1)
AHEAD = [timedelta(minutes=10), timedelta(hours=3), timedelta(days=365)]

pytestmark = pytest.mark.usefixtures("orm_thread")


@pytest.mark.parametrize("ahead", AHEAD)
@pytest.mark.parametrize("limits", [{"requests_per_minute": 2}, {"tokens_per_minute": 40}])
@pytest.mark.parametrize("whose", ["tenant", "key"])
async def test_a_bucket_refills_from_when_the_clock_went_back(
    whose: str, limits: dict[str, Any], ahead: timedelta, world: Any, admitted: Any, db_pool: Pool
) -> None:
    actor = await sync_to_async(world.actor)("acme", **(limits if whose == "tenant" else {"key_limits": limits}))
    await settled(db_pool, await admitted(actor, now=T + ahead, **SIZE), 10)
    await admitted(actor, now=T, **SIZE)  # half of the bucket was left
    with pytest.raises(Denied, match="per_minute"):  # going back gives nothing
        await admitted(actor, now=T, **SIZE)
    for minute in range(1, 4):
        for _ in range(2):
            await settled(db_pool, await admitted(actor, now=T + minute * MINUTE, **SIZE), 10)
        with pytest.raises(Denied, match="per_minute"):
            await admitted(actor, now=T + minute * MINUTE, **SIZE)


@pytest.mark.parametrize("limits", [{"requests_per_minute": 2}, {"tokens_per_minute": 40}])
@pytest.mark.parametrize("whose", ["tenant", "key"])
async def test_an_empty_bucket_refills_although_the_first_request_is_refused(
    whose: str, limits: dict[str, Any], world: Any, admitted: Any
) -> None:
    actor = await sync_to_async(world.actor)("acme", **(limits if whose == "tenant" else {"key_limits": limits}))
    for _ in range(2):
        await admitted(actor, now=T + timedelta(hours=1), **SIZE)
    with pytest.raises(Denied, match="per_minute") as denied:
        await admitted(actor, now=T, **SIZE)
    assert denied.value.retry_after == 30
    with pytest.raises(Denied, match="per_minute"):
        await admitted(actor, now=T + timedelta(seconds=29), **SIZE)
    await admitted(actor, now=T + timedelta(seconds=30), **SIZE)


async def test_tokens_that_were_not_used_are_given_back_after_the_clock_went_back(
    world: Any, admitted: Any, db_pool: Pool
) -> None:
    actor = await sync_to_async(world.actor)("acme", tokens_per_minute=1000)
    await admitted(actor, now=T + timedelta(days=365), **SIZE)
    for _ in range(5):  # 4,510 tokens held, 55 used
        request_id = await admitted(actor, now=T, prompt_tokens=10, max_tokens=892)
        await settled(db_pool, request_id, 1)


async def test_a_lease_from_when_the_clock_was_ahead_ends_soon(world: Any, admitted: Any, db_pool: Pool) -> None:
    actor = await sync_to_async(world.actor)("acme", max_concurrent=2)
    dead, alive = [await admitted(actor, now=T + timedelta(days=365), **SIZE) for _ in range(2)]
    assert await reap(db_pool, now=T) == 0
    for seconds in range(0, 60, 20):
        assert await checkpoint(db_pool, {alive: 1}, now=T + timedelta(seconds=seconds)) == {}
        with pytest.raises(Denied, match="max_concurrent"):
            await admitted(actor, now=T + timedelta(seconds=seconds), **SIZE)
        assert await reap(db_pool, now=T + timedelta(seconds=seconds)) == 0
    assert await reap(db_pool, now=T + MINUTE) == 1
    assert await checkpoint(db_pool, {dead: 1, alive: 2}, now=T + MINUTE) == {dead: "lost"}
    await admitted(actor, now=T + MINUTE, **SIZE)


async def test_a_lease_that_somebody_is_changing_is_cut_the_next_time(
    dsn: str, world: Any, admitted: Any, db_pool: Pool
) -> None:
    actor = await sync_to_async(world.actor)("acme", max_concurrent=1)
    request_id = await admitted(actor, now=T + timedelta(days=365), **SIZE)
    async with await psycopg.AsyncConnection.connect(dsn) as other:
        await other.execute("SELECT 1 FROM tenants_inferencerequest WHERE id = %s FOR UPDATE", [request_id])
        assert await reap(db_pool, now=T) == 0, "and nobody waits"
    assert await reap(db_pool, now=T + MINUTE) == 0
    assert await reap(db_pool, now=T + 2 * MINUTE) == 1


async def use(admitted: Any, pool: Pool, actor: Any, now: datetime) -> bool:
    """Whether 20 more tokens, of a micro-unit each, were there to be used."""
    try:
        request_id = await admitted(actor, now=now, **SIZE)
    except Denied:
        return False
    await settled(pool, request_id, 10)
    return True


@pytest.mark.parametrize("limit", ["tokens_per_day", "tokens_per_month", "budget_hard"])
@pytest.mark.parametrize("whose", ["tenant", "member", "key"])
@pytest.mark.parametrize("wrong", [timedelta(days=2), timedelta(days=40), timedelta(days=-3), timedelta(days=-10000)])
async def test_a_clock_that_was_days_wrong_gives_no_quota_again(
    wrong: timedelta, whose: str, limit: str, world: Any, admitted: Any, db_pool: Pool
) -> None:
    await sync_to_async(world.price)(1_000_000, 0, 1_000_000)
    limits: dict[str, Any] = {limit: 70} if whose == "tenant" else {f"{whose}_limits": {limit: 70}}
    actor = await sync_to_async(world.actor)("acme", **limits)
    running = await admitted(actor, now=T, **SIZE)
    assert await use(admitted, db_pool, actor, T)
    assert await use(admitted, db_pool, actor, T + wrong)
    taken = 1 if limit != "tokens_per_day" and abs(wrong) < timedelta(days=9) else 0
    left = [await use(admitted, db_pool, actor, T) for _ in range(3)]
    assert left == ([False] * 3 if taken else [True, False, False])
    await balances()
    await settled(db_pool, running, 0)  # gives 10 back, to the day in which it was admitted
    await balances()
    assert (await accounts())[whose][2] == (30 if taken else 50)


async def test_days_that_a_wrong_clock_was_in_are_remembered(world: Any, admitted: Any, db_pool: Pool) -> None:
    actor = await sync_to_async(world.actor)("acme", tokens_per_day=30, tokens_per_month=70)
    for day, expected in [
        (0, True),
        (5, True),
        (1, True),
        (5, False),
        (2, False),
        (60, True),
        (0, False),
        (60, False),
        (61, True),
    ]:
        assert await use(admitted, db_pool, actor, T + timedelta(days=day)) == expected, day
        await balances()


async def test_a_settlement_beside_the_way_back_is_counted_once(
    dsn: str, world: Any, admitted: Any, db_pool: Pool
) -> None:
    actor = await sync_to_async(world.actor)("acme", key_limits={"tokens_per_day": 50})
    request_id = await admitted(actor, now=T, **SIZE)
    assert await use(admitted, db_pool, actor, T + timedelta(days=2))
    async with await psycopg.AsyncConnection.connect(dsn) as other:
        await other.execute(
            "SELECT tenants_settle_async(%s, 10, 0, 1, 'completed', 'stop', NULL, NULL, NULL)", [request_id]
        )
        waiting = asyncio.create_task(admitted(actor, now=T, **SIZE))
        waits = "SELECT 1 FROM pg_locks WHERE NOT granted"
        while not waiting.done() and not await (await other.execute(waits)).fetchone():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert not waiting.done(), "it stands before the accounts that the settlement is changing"
        await other.commit()
        await waiting
    assert {day_tokens for _, _, day_tokens, _ in (await accounts()).values()} == {31}
    await balances()
