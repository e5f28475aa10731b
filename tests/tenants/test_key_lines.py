"""A key and its successors are one line: one account, one set of limits, whichever of them is used or changed."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from asgiref.sync import sync_to_async
from django.db import connection

from tenants import key_ring
from tenants.access import Access
from tenants.admission import admit
from tenants.callers import caller_of_command
from tenants.db import Pool
from tenants.errors import Conflict, Denied
from tenants.models import Account, ApiKey, InferenceRequest
from tenants.reconciliation import reconcile
from tenants.settlement import settle
from tenants.standing import standing
from tests.tenants.test_exactness import EACH, FIXED, IN_FLIGHT, attempts, in_processes

pytestmark = pytest.mark.usefixtures("grant_keys", "orm_thread")


def successor_of(actor: Any, key: ApiKey, **options: Any) -> ApiKey:
    made, _ = key_ring.rotate(caller_of_command(actor.tenant), key, **options)
    return made


def access_of(key: ApiKey) -> Access:
    return Access(key.pk, key.tenant_id, "acme", key.member_id, {})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("limit", "code"),
    [
        ("requests_per_minute", "rate_limit_exceeded"),
        ("tokens_per_minute", "rate_limit_exceeded"),
        ("max_concurrent", "concurrency_limit_exceeded"),
        ("tokens_per_day", "insufficient_quota"),
        ("tokens_per_month", "insufficient_quota"),
        ("budget_hard", "insufficient_quota"),
    ],
)
def test_three_generations_in_eight_processes_admit_exactly_the_limit(
    limit: str, code: str, world: Any, dsn: str, new_id: Any
) -> None:
    """Every process uses all three keys of the line at once."""
    world.price(1_000_000, 0, 2_000_000)
    actor = world.actor("acme", key_limits={limit: 137 * EACH.get(limit, 2)})
    second = successor_of(actor, actor.key)
    third = successor_of(actor, second)
    ApiKey.objects.filter(tenant=actor.tenant).update(expires_at=None)  # the test's clock is years ahead
    line = [access_of(key) for key in (actor.key, second, third)]
    model = world.served()

    async def client(pool: Any) -> tuple[int, set[str]]:
        found = [await attempts(access, model, new_id, FIXED, 30)(pool) for access in line]
        return sum(count for count, _ in found), set.union(*(codes for _, codes in found))

    connection.close()
    results = in_processes(dsn, client)
    assert sum(admitted for admitted, _ in results) == 137
    assert set.union(*(codes for _, codes in results)) == {code}
    used = set(InferenceRequest.objects.filter(tenant=actor.tenant).values_list("key_id", flat=True))
    assert used <= {actor.key.pk, second.pk, third.pk}
    assert reconcile().ok


@pytest.mark.slow
def test_a_rotation_amid_admissions_gives_nobody_more(world: Any, dsn: str, new_id: Any) -> None:
    """Each process goes over to the newest key after every attempt, while the key is rotated again and again."""
    actor = world.actor("acme", key_limits={"tokens_per_day": 2 * 137})
    model = world.served()

    async def client(pool: Any) -> tuple[int, set[int]]:
        admitted, used = 0, set()
        for _ in range(60):
            async with pool.connection() as connection:
                (newest,) = await (await connection.execute("SELECT max(id) FROM tenants_apikey")).fetchone()
            access = Access(newest, actor.tenant.pk, "acme", None, {})
            used.add(newest)
            admitted += (await attempts(access, model, new_id, None, IN_FLIGHT)(pool))[0]
        return admitted, used

    def rotate() -> None:
        key = actor.key
        for _ in range(20):
            time.sleep(0.05)
            key = successor_of(actor, key)
        connection.close()

    connection.close()
    rotating = threading.Timer(0.2, rotate)
    rotating.start()
    results = in_processes(dsn, client)
    rotating.join()
    assert sum(admitted for admitted, _ in results) == 137
    assert len(set.union(*(used for _, used in results))) > 3
    assert set(ApiKey.objects.filter(tenant=actor.tenant).values_list("line", flat=True)) == {actor.key.pk}
    assert reconcile().ok


async def test_an_account_opened_late_counts_the_whole_line(
    world: Any, db_pool: Pool, new_id: Callable[[], UUID]
) -> None:
    """Both keys were used before the line had its first limit; then that starts at what both used."""
    actor = await sync_to_async(world.actor)("acme")
    second = await sync_to_async(successor_of)(actor, actor.key)
    model = world.served()

    async def use(key: ApiKey, tokens: int) -> UUID:
        request = new_id()
        await admit(
            db_pool, request_id=request, access=access_of(key), model=model, prompt_tokens=tokens - 1, max_tokens=1
        )
        return request

    settled = await use(actor.key, 30)
    await settle(
        db_pool,
        request_id=settled,
        prompt_tokens=29,
        cached_tokens=0,
        completion_tokens=1,
        outcome="completed",
        finish_reason="stop",
    )
    running = await use(second, 20)

    def limit() -> list[dict[str, Any]]:
        key_ring.change(caller_of_command(actor.tenant), second, limits={"tokens_per_day": 60, "max_concurrent": 2})
        return standing(actor.tenant, key=actor.key)

    _, of_key = await sync_to_async(limit)()
    assert of_key["subject"] == f"key:{actor.key.pk}"
    assert of_key["limits"]["max_concurrent"] == {"limit": 2, "used": 1, "left": 1}
    with pytest.raises(Denied) as refused:
        await use(actor.key, 11)
    assert (refused.value.limit, refused.value.subject, refused.value.remaining) == ("tokens_per_day", "key", 10)
    await use(actor.key, 10)
    with pytest.raises(Denied) as refused:
        await use(second, 1 + 1)
    assert refused.value.limit == "tokens_per_day"
    await settle(
        db_pool,
        request_id=running,
        prompt_tokens=5,
        cached_tokens=0,
        completion_tokens=0,
        outcome="cancelled",
        finish_reason=None,
    )
    _, of_key = await sync_to_async(standing)(actor.tenant, key=second)
    assert of_key["limits"]["tokens_per_day"]["left"] == 15
    subjects = await sync_to_async(lambda: sorted(Account.objects.filter(tenant=actor.tenant).values_list("subject")))()
    assert subjects == [(f"key:{actor.key.pk}",), ("tenant",)]
    assert (await sync_to_async(reconcile)()).ok


def test_two_rotations_at_once_make_one_successor(world: Any) -> None:
    actor = world.actor("acme")
    both, outcomes = threading.Barrier(2), []

    def rotate() -> None:
        both.wait()
        try:
            outcomes.append(successor_of(actor, ApiKey.objects.get(tenant=actor.tenant, pk=actor.key.pk)).public_id)
        except Conflict as conflict:
            outcomes.append(conflict.code)
        connection.close()

    threads = [threading.Thread(target=rotate) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes.count("rotated_already") == 1
    assert ApiKey.objects.filter(tenant=actor.tenant).count() == 2


def test_limits_are_the_lines_whoever_writes_them(world: Any) -> None:
    """Also through the ORM, past every function."""
    actor, other = world.actor("acme"), world.actor("globex")
    stranger_in_the_same_tenant, _ = ApiKey.issue(actor.tenant)
    second = successor_of(actor, actor.key)
    ApiKey.objects.filter(tenant=actor.tenant, pk=second.pk).update(tokens_per_day=7, only_adapters=[1, 2])
    actor.key.refresh_from_db(from_queryset=ApiKey.objects.unscoped())
    assert (actor.key.tokens_per_day, actor.key.only_adapters) == (7, [1, 2])
    actor.key.max_concurrent = 3
    actor.key.save()
    assert ApiKey.objects.get(tenant=actor.tenant, pk=second.pk).max_concurrent == 3
    for key in (stranger_in_the_same_tenant, other.key):
        key.refresh_from_db(from_queryset=ApiKey.objects.unscoped())
        assert (key.tokens_per_day, key.max_concurrent) == (None, None)


async def test_the_overlap(world: Any, db_pool: Pool, new_id: Callable[[], UUID]) -> None:
    actor = await sync_to_async(world.actor)("acme")
    second = await sync_to_async(successor_of)(actor, actor.key, overlap=timedelta(seconds=1))
    third = await sync_to_async(successor_of)(actor, second, overlap=timedelta(0))

    async def may(key: ApiKey) -> bool:
        try:
            await admit(
                db_pool,
                request_id=new_id(),
                access=access_of(key),
                model=world.served(),
                prompt_tokens=1,
                max_tokens=1,
            )
        except Denied as denied:
            return denied.code != "key_revoked"
        return True

    assert [await may(key) for key in (actor.key, second, third)] == [True, False, True]
    await asyncio.sleep(1.1)
    assert [await may(key) for key in (actor.key, second, third)] == [False, False, True]


def test_an_account_has_no_more_keys_than_it_may(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight at once for the last three places; what has ended gives its place back."""
    monkeypatch.setattr(key_ring, "MOST_KEYS", 4)
    actor = world.actor("acme")
    caller, together, outcomes = caller_of_command(actor.tenant), threading.Barrier(8), []

    def issue() -> None:
        together.wait()
        try:
            outcomes.append(key_ring.issue(caller, key_ring.Wanted())[0])
        except Conflict as conflict:
            outcomes.append(conflict.code)
        connection.close()

    threads = [threading.Thread(target=issue) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes.count("too_many_keys") == 5
    made = next(outcome for outcome in outcomes if isinstance(outcome, ApiKey))
    with pytest.raises(Conflict):
        key_ring.rotate(caller, made)
    key_ring.revoke(caller, made)
    key_ring.issue(caller, key_ring.Wanted())
