"""Why was I rejected? Counted by reason, written in batches; a flood of refusals writes next to nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from asgiref.sync import sync_to_async
from django.db import connection, transaction
from django.utils import timezone

from tenants import denials, tasks
from tenants.admission import admit
from tenants.db import Pool, open_pool
from tenants.errors import Denied
from tenants.models import Denial

pytestmark = pytest.mark.usefixtures("grant_keys", "orm_thread")


@pytest.fixture
def refused(world: Any, db_pool: Pool, new_id: Callable[[], UUID]) -> Callable[..., Any]:
    async def make(actor: Any, max_tokens: int | None = 10, prompt: int = 10, pool: Pool = db_pool) -> Denied:
        with pytest.raises(Denied) as caught:
            await admit(
                pool,
                request_id=new_id(),
                access=actor.access(),
                model=world.served(),
                prompt_tokens=prompt,
                max_tokens=max_tokens,
            )
        return caught.value

    return make


@sync_to_async
def recorded(tenant: Any) -> list[Denial]:
    return list(Denial.objects.filter(tenant=tenant).order_by("-count", "code"))


async def test_refusals_share_a_row_for_each_reason(refused: Any, world: Any, db_pool: Pool) -> None:
    actor = await sync_to_async(world.actor)("acme", tokens_per_day=15, key_limits={"max_output_tokens": 12})
    for _ in range(5):
        last = await refused(actor)
    await refused(actor, 13)
    await refused(actor, 0)
    assert await recorded(actor.tenant) == []
    await denials.flush(db_pool)
    first, *others = await recorded(actor.tenant)
    assert (first.count, first.code, first.limit, first.subject) == (
        5,
        "insufficient_quota",
        "tokens_per_day",
        "tenant",
    )
    assert (first.last_message, first.last_model, first.key_id) == (last.message, "llama-tiny", actor.key.pk)
    assert [(row.code, row.limit, row.subject) for row in others] == [
        ("invalid_value", "", ""),
        ("max_output_tokens_exceeded", "max_output_tokens", "key"),
    ]
    await refused(actor)
    await denials.flush(db_pool)
    assert (await recorded(actor.tenant))[0].count == 6


async def test_they_are_written_without_being_asked(
    refused: Any, world: Any, db_pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(denials, "FLUSH_SECONDS", 0.05)
    actor = await sync_to_async(world.actor)("acme", max_input_tokens=1)
    await refused(actor)
    for _ in range(100):
        await asyncio.sleep(0.05)
        if await recorded(actor.tenant):
            return
    pytest.fail("not written")


async def test_a_tenant_that_is_gone_spoils_no_batch(refused: Any, world: Any, db_pool: Pool) -> None:
    actor, gone = await sync_to_async(world.actor)("acme", max_input_tokens=1), await sync_to_async(world.actor)("gone")
    stranger = type(gone)(type(gone.tenant)(pk=uuid4(), slug="x"), gone.key, "")
    assert (await refused(stranger)).code == "key_revoked"
    await refused(actor)
    await denials.flush(db_pool)
    assert len(await recorded(actor.tenant)) == 1


async def test_a_database_that_is_away_loses_nothing(refused: Any, world: Any, db_pool: Pool) -> None:
    actor = await sync_to_async(world.actor)("acme", max_input_tokens=1)
    own = open_pool(min_size=1, max_size=1)
    await own.open()
    await refused(actor, pool=own)
    await own.close()
    await denials.flush(own)
    log = denials._logs[own]
    assert [seen.count for seen in log.seen.values()] == [1]
    await log.flush(db_pool)
    assert [row.count for row in await recorded(actor.tenant)] == [1]


async def test_reasons_are_bounded(
    refused: Any, world: Any, db_pool: Pool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(denials, "MOST_REASONS", 1)
    actor = await sync_to_async(world.actor)("acme", max_input_tokens=20)
    await refused(actor, 0)
    await refused(actor, 1, prompt=21)
    await refused(actor, 0)
    await denials.flush(db_pool)
    assert [(row.code, row.count) for row in await recorded(actor.tenant)] == [("invalid_value", 2)]
    assert "1 refusals" in caplog.text


def test_a_refusal_writes_nothing(world: Any) -> None:
    """Not a byte of write-ahead log: the transaction does not even get a number."""
    actor = world.actor("acme", requests_per_minute=1, key_limits={"tokens_per_day": 100})
    decide = "SELECT code FROM tenants_decide(%s, %s, %s, %s, NULL, 1, 1, 1, interval '30 s')"
    numbered = "SELECT pg_current_xact_id_if_assigned() IS NOT NULL"
    outcomes = []
    for _ in range(2):
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(decide, [uuid4(), actor.tenant.pk, actor.key.pk, world.base.pk])
            [code] = cursor.fetchone()
            cursor.execute(numbered)
            outcomes.append((code, *cursor.fetchone()))
    assert outcomes == [(None, True), ("rate_limit_exceeded", False)]


def test_old_ones_are_forgotten(world: Any) -> None:
    actor, now = world.actor("acme"), timezone.now()
    values = {"tenant": actor.tenant, "key": actor.key, "count": 1, "last_request_id": uuid4(), "last_at": now}
    for days in (1, 29, 31):
        Denial.objects.create(hour=now - timedelta(days=days), code="x", **values)
    assert tasks.forget_denials() == 1
    assert Denial.objects.filter(tenant=actor.tenant).count() == 2
