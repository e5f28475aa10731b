"""An account that is opened late: what it reads for that, and what it says of members that are gone."""

from __future__ import annotations

from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth import get_user_model
from django.db import connection, transaction

from tenants import keys
from tenants.admission import admit
from tenants.db import Pool
from tenants.errors import Denied
from tenants.models import Account, ApiKey, Member
from tenants.reconciliation import reconcile
from tenants.settlement import settle
from tests.tenants.conftest import Actor

pytestmark = pytest.mark.usefixtures("grant_keys", "orm_thread")
ENTRIES = 60


async def used(admitted: Any, db_pool: Pool, actor: Actor, count: int) -> None:
    for _ in range(count):
        request_id = await admitted(actor)
        await settle(
            db_pool,
            request_id=request_id,
            prompt_tokens=100,
            cached_tokens=0,
            completion_tokens=1,
            outcome="completed",
            finish_reason="stop",
        )


def read_for(actor: Actor, subject: str) -> int:
    """Ledger entries that are looked at to find out what this account has to say."""
    seen = "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relname = 'tenants_ledgerentry'"
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off")  # which a table of sixty rows deserves
        cursor.execute(seen)
        ((before,),) = cursor.fetchall()
        cursor.execute(
            "SELECT settled_count FROM tenants_derived(%s, %s, date '2030-01-01', date '2030-01-01')",
            [actor.tenant.pk, subject],
        )
        ((count,),) = cursor.fetchall()
        cursor.execute(seen)
        ((after,),) = cursor.fetchall()
    assert count <= after - before
    return int(after - before)


def member_of(actor: Actor, name: str) -> Member:
    return Member.objects.create(tenant=actor.tenant, user=get_user_model().objects.create_user(name))


@pytest.mark.parametrize("member", [False, True])
async def test_a_new_keys_account_reads_its_own_entries(member: bool, world: Any, admitted: Any, db_pool: Pool) -> None:
    actor = await sync_to_async(world.actor)("acme", key_limits={"tokens_per_day": 10**9})
    await used(admitted, db_pool, actor, ENTRIES)

    def late() -> tuple[int, int]:
        made, version = keys.generate(), keys.current_pepper()
        key = ApiKey.objects.create(
            tenant=actor.tenant,
            public_id=made.public_id,
            digest=keys.hash(made.secret, version),
            pepper_version=version,
            member=member_of(actor, "bob") if member else None,
        )
        subject = f"member:{key.member_id}" if member else f"key:{key.pk}"
        return read_for(actor, subject), read_for(actor, f"key:{actor.key.pk}")

    assert await sync_to_async(late)() == (0, ENTRIES)


async def test_a_member_that_is_gone_keeps_its_books(world: Any, admitted: Any, db_pool: Pool) -> None:
    actor = await sync_to_async(world.actor)("acme", member_limits={"tokens_per_day": 10**9})
    await used(admitted, db_pool, actor, 3)

    def gone() -> tuple[int, bool]:
        subject = f"member:{actor.key.member_id}"
        actor.key.member.delete()
        return Account.objects.get(tenant=actor.tenant, subject=subject).settled_count, reconcile().ok

    assert await sync_to_async(gone)() == (3, True)


async def test_a_budget_far_below_what_was_spent_refuses(world: Any, admitted: Any, db_pool: Pool, new_id: Any) -> None:
    """Ten million of a currency with small units: the difference in micro-units of micro-units is more than 64 bits."""
    await sync_to_async(world.price)(1_000_000, 0, 1_000_000)
    actor = await sync_to_async(world.actor)("acme", budget_hard=10**15)
    await admitted(actor)

    def spent() -> None:
        Account.objects.filter(tenant=actor.tenant).update(month_cost=10**13)
        actor.tenant.budget_hard = 0
        actor.tenant.save()

    await sync_to_async(spent)()
    asked = {"access": actor.access(), "model": world.served(), "prompt_tokens": 1, "max_tokens": 1}
    with pytest.raises(Denied) as refused:
        await admit(db_pool, request_id=new_id(), **asked)
    assert (refused.value.code, refused.value.remaining) == ("insufficient_quota", 0)
