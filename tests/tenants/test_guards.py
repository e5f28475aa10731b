"""What requests and the ledger name stays, whoever writes: the database sees to it, without foreign keys."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from uuid import UUID

import psycopg
import pytest
from asgiref.sync import sync_to_async
from django.db import DatabaseError, IntegrityError, connection

from tenants.admission import admit
from tenants.db import Pool
from tenants.errors import Denied
from tenants.models import ApiKey, InferenceRequest, Tenant

pytestmark = pytest.mark.usefixtures("orm_thread")

DELETE = {
    "key": "DELETE FROM tenants_apikey WHERE id = %(key)s",
    "tenant": "DELETE FROM tenants_tenant WHERE id = %(tenant)s",
    "base model": "DELETE FROM tenants_basemodel WHERE id = %(base)s",
    "price": "DELETE FROM tenants_price WHERE id = %(price)s",
    "adapter version": "DELETE FROM tenants_adapterversion WHERE id = %(version)s",
    "request": "DELETE FROM tenants_inferencerequest WHERE id = %(request)s",
}


def run(statement: str, names: dict[str, Any]) -> int:
    with connection.cursor() as cursor:
        cursor.execute(statement, names)
        return int(cursor.rowcount)


@pytest.mark.parametrize("what", DELETE)
async def test_what_a_request_names_stays(what: str, world: Any, admitted: Any) -> None:
    price = await sync_to_async(world.price)(1, 1, 1)
    actor = await sync_to_async(world.actor)("acme")
    adapter = await sync_to_async(world.adapter)(actor.tenant, "polite")
    request = await admitted(actor, model=world.served(adapter))
    row = await sync_to_async(InferenceRequest.objects.unscoped().get)()
    assert (row.price_id, row.adapter_version_id) == (price.pk, adapter.current_id), "it names them all"
    names = {
        "key": actor.key.pk,
        "tenant": actor.tenant.pk,
        "base": world.base.pk,
        "price": price.pk,
        "version": adapter.current_id,
        "request": request,
    }
    with pytest.raises((IntegrityError, DatabaseError), match=r"that name it|written once|cannot change"):
        await sync_to_async(run)(DELETE[what], names)


@pytest.mark.parametrize("table", ["tenant", "apikey", "basemodel", "price", "adapterversion", "inferencerequest"])
def test_what_requests_name_is_not_emptied(table: str, world: Any) -> None:
    with pytest.raises(IntegrityError, match="written once"):
        run(f"TRUNCATE tenants_{table} CASCADE", {})


def test_what_no_request_names_may_go(world: Any) -> None:
    used, unused = world.actor("acme"), world.actor("globex", allow=False)
    assert run(DELETE["key"], {"key": unused.key.pk}) == 1
    assert run(DELETE["tenant"], {"tenant": unused.tenant.pk}) == 1
    assert ApiKey.objects.unscoped().get() == used.key


async def test_of_a_used_tenant_another_key_may_go(world: Any, admitted: Any) -> None:
    actor = await sync_to_async(world.actor)("acme")
    await admitted(actor)
    globex = await sync_to_async(world.actor)("globex")
    keys = ApiKey.objects.unscoped()
    await sync_to_async(keys.filter(pk=globex.key.pk).update)(tenant=actor.tenant)
    assert await sync_to_async(run)(DELETE["key"], {"key": globex.key.pk}) == 1
    await sync_to_async(keys.filter(pk=actor.key.pk).update)(tenant=globex.tenant)
    with pytest.raises(IntegrityError, match="that name it"):
        await sync_to_async(run)(DELETE["key"], {"key": actor.key.pk})


@pytest.mark.parametrize("table", ["tenant", "apikey", "basemodel", "inferencerequest"])
async def test_what_requests_name_keeps_its_name(table: str, world: Any, admitted: Any) -> None:
    await admitted(await sync_to_async(world.actor)("acme"))
    new = "id + 1" if table in ("apikey", "basemodel") else "gen_random_uuid()"
    with pytest.raises(IntegrityError, match="written once"):
        await sync_to_async(run)(f"UPDATE tenants_{table} SET id = {new}", {})


async def test_a_removal_waits_for_admissions_and_they_for_it(
    world: Any, grant_keys: Any, db_pool: Pool, new_id: Callable[[], UUID], dsn: str
) -> None:
    """Whichever comes first is done; the other finds it so."""
    actor = await sync_to_async(world.actor)("acme")

    async def admission() -> None:
        await admit(
            db_pool,
            request_id=new_id(),
            access=actor.access(),
            model=world.served(),
            prompt_tokens=1,
            max_tokens=1,
        )

    async with await psycopg.AsyncConnection.connect(dsn) as remover:
        await remover.execute(DELETE["key"], {"key": actor.key.pk})
        waiting = asyncio.create_task(admission())
        await asyncio.sleep(0.2)
        assert not waiting.done(), "a key that may yet stay"
        await remover.rollback()
        await waiting
        with pytest.raises(psycopg.IntegrityError, match="that name it"):
            await remover.execute(DELETE["key"], {"key": actor.key.pk})
        await remover.rollback()

    globex = actor = await sync_to_async(world.actor)("globex", allow=True)
    async with await psycopg.AsyncConnection.connect(dsn) as remover:
        await remover.execute(DELETE["key"], {"key": globex.key.pk})
        waiting = asyncio.create_task(admission())
        await asyncio.sleep(0.2)
        await remover.commit()
        with pytest.raises(Denied, match="key"):
            await waiting
    assert await sync_to_async(Tenant.objects.filter(pk=globex.tenant.pk).exists)()
