"""What requests of many tenants do to each other in one statement, in the database."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import pytest
from asgiref.sync import sync_to_async
from psycopg.errors import UniqueViolation

from tenants import together
from tenants.admission import admit
from tenants.db import Pool
from tenants.models import InferenceRequest
from tenants.settlement import settle
from tenants.together import MOST


class Counted:
    """What is asked of the database: how many requests in each statement."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sizes: list[int] = []
        self.patient = 0
        send = together._Lane._send

        async def counted(lane: Any, pool: Pool, connection: Any, batch: list[Any]) -> None:
            self.sizes.append(len(batch))
            self.patient += lane._party is not None
            await send(lane, pool, connection, batch)

        monkeypatch.setattr(together._Lane, "_send", counted)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    return Counted(monkeypatch)


async def admitted_by(pool: Pool, world: Any, actor: Any, request_id: UUID, **options: Any) -> UUID:
    await admit(
        pool,
        request_id=request_id,
        access=actor.access(),
        model=world.served(),
        **{"prompt_tokens": 10, "max_tokens": 10} | options,
    )
    return request_id


async def settled(pool: Pool, request_id: UUID, actor: Any) -> bool:
    return await settle(
        pool,
        request_id=request_id,
        tenant_id=actor.tenant.pk,
        prompt_tokens=10,
        cached_tokens=0,
        completion_tokens=5,
        outcome="completed",
        finish_reason="stop",
    )


@pytest.fixture
async def actors(world: Any, grant_keys: Any, orm_thread: None, db_pool: Pool, new_id: Any) -> list[Any]:
    """Sixteen tenants with accounts."""
    found = [await sync_to_async(world.actor)(f"t{number}", max_concurrent=100) for number in range(16)]
    for actor in found:
        await settled(db_pool, await admitted_by(db_pool, world, actor, new_id()), actor)
    return found


async def test_requests_of_many_tenants_share_statements(
    actors: list[Any], world: Any, db_pool: Pool, new_id: Any, counted: Counted
) -> None:
    ids = await asyncio.gather(*(admitted_by(db_pool, world, actor, new_id()) for actor in actors for _ in range(3)))
    assert sum(counted.sizes) == 48
    assert len(counted.sizes) <= 48 / MOST + 2
    assert counted.patient == 0
    found = await asyncio.gather(*(settled(db_pool, id, actors[number // 3]) for number, id in enumerate(ids)))
    assert all(found)
    assert not any(await asyncio.gather(*(settled(db_pool, id, actors[0]) for id in ids))), "once"


async def test_an_id_that_is_there_already_fails_alone(
    actors: list[Any], world: Any, db_pool: Pool, new_id: Any, counted: Counted
) -> None:
    taken = await admitted_by(db_pool, world, actors[0], new_id())
    asked = [admitted_by(db_pool, world, actor, taken if actor is actors[5] else new_id()) for actor in actors]
    found = await asyncio.gather(*asked, return_exceptions=True)
    assert [number for number, one in enumerate(found) if isinstance(one, UniqueViolation)] == [5]
    assert await sync_to_async(InferenceRequest.objects.unscoped().filter(state="running").count)() == 16


async def test_a_tenant_whose_account_is_kept_holds_up_no_settlement(
    actors: list[Any], world: Any, db_pool: Pool, new_id: Any
) -> None:
    ids = await asyncio.gather(*(admitted_by(db_pool, world, actor, new_id()) for actor in actors))
    async with db_pool.connection() as blocker:
        async with blocker.transaction():
            await blocker.execute(
                "SELECT FROM tenants_account WHERE tenant_id = %s AND subject = 'tenant' FOR UPDATE",
                [actors[3].tenant.pk],
            )
            tasks = [asyncio.create_task(settled(db_pool, id, actor)) for id, actor in zip(ids, actors, strict=True)]
            async with asyncio.timeout(3):
                await asyncio.gather(*(task for number, task in enumerate(tasks) if number != 3))
            assert not tasks[3].done()
        assert await tasks[3]


async def test_a_tenant_whose_account_is_kept_holds_up_no_admission_for_long(
    actors: list[Any], world: Any, db_pool: Pool, new_id: Any
) -> None:
    async with db_pool.connection() as blocker:
        async with blocker.transaction():
            await blocker.execute(
                "SELECT FROM tenants_account WHERE tenant_id = %s AND subject = 'tenant' FOR UPDATE",
                [actors[3].tenant.pk],
            )
            tasks = [asyncio.create_task(admitted_by(db_pool, world, actor, new_id())) for actor in actors]
            async with asyncio.timeout(3):
                await asyncio.gather(*(task for number, task in enumerate(tasks) if number != 3))
            assert not tasks[3].done()
        await tasks[3]


async def test_a_first_request_opens_its_accounts_by_itself(
    actors: list[Any], world: Any, db_pool: Pool, new_id: Any, counted: Counted
) -> None:
    new = await sync_to_async(world.actor)("new", max_concurrent=1)
    await asyncio.gather(*(admitted_by(db_pool, world, actor, new_id()) for actor in [*actors, new]))
    assert counted.patient == 1, "a look through a ledger keeps nobody else"
