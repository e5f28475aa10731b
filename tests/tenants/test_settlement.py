"""settle, checkpoint, reap: every request has one ledger row in the end, whoever dies when."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from asgiref.sync import sync_to_async
from django.db import IntegrityError, connection

from tenants.db import Pool
from tenants.models import Account, AdapterVersion, InferenceRequest, LedgerEntry
from tenants.settlement import Timings, checkpoint, reap, settle, void

LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)

pytestmark = pytest.mark.usefixtures("grant_keys", "orm_thread")


@pytest.fixture
def actor(world: Any) -> Any:
    return world.actor("acme")


@pytest.fixture
def start(admitted: Any, actor: Any) -> Any:
    async def started(now: datetime | None = None, actor: Any = actor, **options: Any) -> UUID:
        request_id: UUID = await admitted(actor, now=now, **options)
        return request_id

    return started


def finish(pool: Pool, request_id: UUID, completion: int = 20, **options: Any) -> Any:
    values = {"cached_tokens": 30, "outcome": "completed", "finish_reason": "stop"} | options
    return settle(pool, request_id=request_id, prompt_tokens=100, completion_tokens=completion, **values)


@sync_to_async
def ledger() -> list[LedgerEntry]:
    return list(LedgerEntry.objects.unscoped().order_by("id"))


@sync_to_async
def request(request_id: UUID) -> InferenceRequest:
    found: InferenceRequest = InferenceRequest.objects.unscoped().get(pk=request_id)
    return found


async def test_settle_writes_one_row(start: Any, db_pool: Pool, actor: Any, world: Any) -> None:
    adapter = await sync_to_async(world.adapter)(actor.tenant, "pirate")
    request_id = await start(model=world.served(adapter))
    assert await finish(db_pool, request_id)
    assert not await finish(db_pool, request_id, completion=999)
    [entry] = await ledger()
    assert (entry.request_id, entry.tenant_id, entry.key_id) == (request_id, actor.tenant.pk, actor.key.pk)
    assert (entry.base_model_id, entry.adapter_version_id) == (world.base.pk, adapter.current_id)
    assert (entry.prompt_tokens, entry.cached_tokens, entry.completion_tokens) == (100, 30, 20)
    assert (entry.outcome, entry.finish_reason) == ("completed", "stop")
    assert (await request(request_id)).state == "settled"


async def test_where_the_time_went_is_kept_once(start: Any, db_pool: Pool) -> None:
    request_id, other = await start(), await start()
    assert await finish(db_pool, request_id, timings=Timings(120, 20, 95))
    assert not await finish(db_pool, request_id, timings=Timings(1, 1, 1))
    assert await finish(db_pool, other)
    timed, untimed = await request(request_id), await request(other)
    assert (timed.first_token_ms, timed.queue_ms, timed.prefill_ms) == (120, 20, 95)
    assert (untimed.first_token_ms, untimed.queue_ms, untimed.prefill_ms) == (None, None, None)


async def test_an_unknown_request_settles_nothing(db_pool: Pool, new_id: Callable[[], UUID], world: Any) -> None:
    assert not await finish(db_pool, new_id())
    assert await ledger() == []


async def test_no_more_is_billed_than_was_held(start: Any, db_pool: Pool, caplog: pytest.LogCaptureFixture) -> None:
    request_id = await start(max_tokens=5)
    assert await finish(db_pool, request_id, completion=6)
    assert (await ledger())[0].completion_tokens == 5
    assert "held 5" in caplog.text


async def test_checkpoint_renews_and_remembers(start: Any, db_pool: Pool) -> None:
    request_id = await start()
    before = (await request(request_id)).lease_expires_at
    await asyncio.sleep(0.01)
    assert await checkpoint(db_pool, {request_id: 7}) == {}
    after = await request(request_id)
    assert after.emitted_tokens == 7
    assert after.lease_expires_at > before
    await checkpoint(db_pool, {request_id: 3})
    assert (await request(request_id)).emitted_tokens == 7, "the mark never falls"
    await checkpoint(db_pool, {request_id: 10_000})
    assert (await request(request_id)).emitted_tokens == 50, "nor exceeds the hold"
    await checkpoint(db_pool, {request_id: 50}, cached={request_id: 10_000})
    assert (await request(request_id)).cached_tokens == 100, "no more is cached than was asked"


async def test_checkpoint_names_those_to_stop(
    start: Any, db_pool: Pool, world: Any, new_id: Callable[[], UUID]
) -> None:
    actors = {}
    for name in ("fine", "revoked", "expired", "suspended"):
        actors[name] = await sync_to_async(world.actor)(name)
    ids = {name: await start(actor=actors[name]) for name in actors}
    ids["settled"], ids["stale"], ids["unknown"] = await start(), await start(LONG_AGO), new_id()
    await finish(db_pool, ids["settled"])
    actors["revoked"].key.revoked_at = datetime.now(UTC)
    actors["expired"].key.expires_at = datetime.now(UTC)
    actors["suspended"].tenant.state = "suspended"
    for row in (actors["revoked"].key, actors["expired"].key, actors["suspended"].tenant):
        await sync_to_async(row.save)()
    stop = await checkpoint(db_pool, dict.fromkeys(ids.values(), 4))
    lost, revoked = ("settled", "stale", "unknown"), ("revoked", "expired")
    expected = {ids[name]: "lost" for name in lost} | {ids[name]: "revoked" for name in revoked}
    assert stop == expected | {ids["suspended"]: "suspended"}
    assert (await request(ids["revoked"])).emitted_tokens == 4, "what it got until now is still billed"
    assert (await request(ids["stale"])).emitted_tokens == 0, "a lease that ran out is not renewed"
    assert await checkpoint(db_pool, {}) == {}


async def test_reap_settles_at_the_last_mark(start: Any, db_pool: Pool) -> None:
    alive, dead = await start(), await start()
    await checkpoint(db_pool, {dead: 9, alive: 5}, cached={dead: 40})
    await checkpoint(db_pool, {dead: 9})
    assert await reap(db_pool) == 0
    later = datetime.now(UTC) + timedelta(seconds=31)
    await finish(db_pool, alive)
    assert await reap(db_pool, now=later) == 1
    assert await reap(db_pool, now=later) == 0
    assert not await finish(db_pool, dead)
    entry = (await ledger())[-1]
    assert (entry.request_id, entry.prompt_tokens, entry.completion_tokens) == (dead, 100, 9)
    assert (entry.outcome, entry.cached_tokens) == ("abandoned", 40), "as durable as what was generated"


async def test_a_lost_request_of_which_no_token_is_known_costs_nothing(start: Any, db_pool: Pool) -> None:
    request_id = await start(LONG_AGO)
    assert await reap(db_pool) == 1
    [entry] = await ledger()
    assert (entry.request_id, entry.prompt_tokens, entry.completion_tokens) == (request_id, 0, 0)


async def test_settle_and_reap_race(start: Any, db_pool: Pool) -> None:
    ids = [await start(LONG_AGO) for _ in range(60)]
    settled, reaped_a, again, reaped_b = await asyncio.gather(
        asyncio.gather(*(finish(db_pool, request_id) for request_id in ids)),
        reap(db_pool),
        asyncio.gather(*(finish(db_pool, request_id) for request_id in reversed(ids))),
        reap(db_pool),
    )
    assert sum(settled) + sum(again) + reaped_a + reaped_b == len(ids)
    assert sorted(entry.request_id for entry in await ledger()) == sorted(ids)


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE tenants_ledgerentry SET prompt_tokens = 0",
        "DELETE FROM tenants_ledgerentry",
        "TRUNCATE tenants_ledgerentry",
        "TRUNCATE tenants_tenant CASCADE",
    ],
)
async def test_the_ledger_is_append_only(sql: str, start: Any, db_pool: Pool) -> None:
    await finish(db_pool, await start())

    def change() -> None:
        with connection.cursor() as cursor:
            cursor.execute(sql)

    with pytest.raises(IntegrityError, match=r"append-only|written once"):
        await sync_to_async(change)()
    [entry] = await ledger()
    assert entry.prompt_tokens == 100


async def test_what_is_held_and_at_which_price_is_written_once(start: Any, world: Any) -> None:
    await sync_to_async(world.price)(1, 1, 1)
    await start()

    def change(sql: str) -> None:
        with connection.cursor() as cursor:
            cursor.execute(sql)

    for sql in (
        "UPDATE tenants_price SET input = 0",
        "DELETE FROM tenants_price",
        "UPDATE tenants_inferencerequest SET held_cost = 0",
        "UPDATE tenants_inferencerequest SET max_tokens = 0",
    ):
        with pytest.raises(IntegrityError, match="written once"):
            await sync_to_async(change)(sql)


async def test_a_void_gives_everything_back(start: Any, db_pool: Pool, actor: Any) -> None:
    request_id = await start()
    assert await void(db_pool, request_id)
    assert not await void(db_pool, request_id)
    [entry] = await ledger()
    assert (entry.kind, entry.prompt_tokens, entry.completion_tokens, entry.cost) == ("void", 0, 0, 0)
    account = await sync_to_async(Account.objects.get)(tenant=actor.tenant, subject="tenant")
    assert (account.held_tokens, account.day_tokens, account.settled_count) == (0, 0, 1)


async def test_no_more_of_the_prompt_is_billed_than_was_held(start: Any, db_pool: Pool) -> None:
    request_id = await start()
    assert await settle(
        db_pool,
        request_id=request_id,
        prompt_tokens=900,
        cached_tokens=900,
        completion_tokens=1,
        outcome="completed",
        finish_reason="stop",
    )
    [entry] = await ledger()
    assert (entry.prompt_tokens, entry.cached_tokens) == (100, 100)


async def test_a_lease_about_to_end_is_not_renewed(start: Any, db_pool: Pool) -> None:
    """An admission whose clock is a moment later may already have given its place away."""
    begun = datetime(2030, 1, 1, tzinfo=UTC)
    request_id = await start(begun)
    assert await checkpoint(db_pool, {request_id: 3}, now=begun + timedelta(seconds=29)) == {request_id: "lost"}
    assert (await request(request_id)).emitted_tokens == 0
    assert await checkpoint(db_pool, {request_id: 3}, now=begun + timedelta(seconds=28.9)) == {}


async def test_a_checkpoint_that_waits_looks_at_the_clock_afterwards(start: Any, db_pool: Pool) -> None:
    """Somebody holds the row while the lease runs out."""
    almost = datetime.now(UTC) - timedelta(seconds=28.5)
    request_id = await start(almost)
    async with db_pool.connection() as blocker:
        async with blocker.transaction():
            await blocker.execute("SELECT 1 FROM tenants_inferencerequest WHERE id = %s FOR UPDATE", [request_id])
            waiting = asyncio.create_task(checkpoint(db_pool, {request_id: 3}))
            await asyncio.sleep(0.7)
            assert not waiting.done()
        assert await waiting == {request_id: "lost"}


def test_a_ready_version_never_changes(world: Any, actor: Any) -> None:
    version = world.adapter(actor.tenant, "pirate").current
    version.digest = "0" * 64
    with pytest.raises(IntegrityError, match="cannot change"):
        version.save()
    with pytest.raises(IntegrityError, match="cannot change"):
        AdapterVersion.objects.filter(adapter__tenant=actor.tenant).update(number=2)
