"""A clock that is set back over midnight: what the new day has used stays used, and the books balance."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from asgiref.sync import sync_to_async

from tenants import rollups
from tenants.db import Pool
from tenants.errors import Denied
from tenants.models import Account, ApiKey, InferenceRequest
from tenants.reconciliation import reconcile
from tenants.settlement import settle
from tenants.standing import standing
from tests.tenants.conftest import Actor

MIDNIGHT = datetime(2030, 2, 1, tzinfo=UTC)
BEFORE, AFTER = MIDNIGHT - timedelta(milliseconds=40), MIDNIGHT + timedelta(milliseconds=3)
SIZE = {"prompt_tokens": 10, "max_tokens": 10}

pytestmark = pytest.mark.usefixtures("orm_thread")


@sync_to_async
def accounts() -> dict[str, tuple[str, str, int, int]]:
    """Of each kind of subject: day, month, and the tokens of both."""
    return {
        account.subject.split(":")[0]: (str(account.day), str(account.month), account.day_tokens, account.month_tokens)
        for account in Account.objects.unscoped()
    }


async def balances() -> None:
    found = await sync_to_async(reconcile)()
    assert found.ok, found.findings


async def settled(pool: Pool, request_id: UUID, completion: int) -> None:
    assert await settle(
        pool,
        request_id=request_id,
        prompt_tokens=10,
        cached_tokens=0,
        completion_tokens=completion,
        outcome="completed",
        finish_reason="stop",
    )


@pytest.mark.parametrize("limit", ["tokens_per_day", "tokens_per_month", "budget_hard"])
@pytest.mark.parametrize("whose", ["tenant", "member", "key"])
async def test_what_the_new_day_used_is_not_used_again(
    limit: str, whose: str, world: Any, admitted: Any, db_pool: Pool
) -> None:
    await sync_to_async(world.price)(1_000_000, 0, 1_000_000)  # a micro-unit each token
    limits: dict[str, Any] = {limit: 50} if whose == "tenant" else {f"{whose}_limits": {limit: 50}}
    actor = await sync_to_async(world.actor)("acme", **limits)
    await admitted(actor, now=BEFORE, **SIZE)
    first = await admitted(actor, now=AFTER, **SIZE)
    second = await admitted(actor, now=BEFORE, **SIZE)
    with pytest.raises(Denied) as denied:
        await admitted(actor, now=BEFORE, **SIZE)
    assert (denied.value.limit, denied.value.subject, denied.value.remaining) == (limit, whose, 10)
    days = 1 if limit == "tokens_per_day" else 28
    assert denied.value.retry_after == pytest.approx(days * 86400 + 0.04)
    for subject in {"tenant", whose}:
        assert (await accounts())[subject] == ("2030-02-01", "2030-02-01", 40, 40)
    await balances()
    await settled(db_pool, first, 1)
    await settled(db_pool, second, 0)
    for subject in {"tenant", whose}:
        assert (await accounts())[subject] == ("2030-02-01", "2030-02-01", 21, 21)
    await balances()


async def test_a_key_that_was_not_used_in_the_new_day_yet_begins_it(world: Any, admitted: Any, db_pool: Pool) -> None:
    actor = await sync_to_async(world.actor)("acme", key_limits={"tokens_per_day": 30})
    plain = await sync_to_async(ApiKey.objects.create)(
        tenant=actor.tenant, public_id="plain", digest=b"", pepper_version=1
    )
    await admitted(actor, now=BEFORE, **SIZE)
    await admitted(Actor(actor.tenant, plain, ""), now=AFTER, **SIZE)
    await admitted(actor, now=BEFORE, **SIZE)
    assert await accounts() == {
        "tenant": ("2030-02-01", "2030-02-01", 40, 40),
        "key": ("2030-02-01", "2030-02-01", 20, 20),
    }
    await balances()


async def test_an_account_opened_meanwhile_is_of_the_new_day(world: Any, admitted: Any) -> None:
    actor = await sync_to_async(world.actor)("acme")
    await admitted(actor, now=AFTER, **SIZE)
    actor.key.tokens_per_day = 30
    await sync_to_async(actor.key.save)()
    with pytest.raises(Denied, match="tokens_per_day"):
        await admitted(actor, now=BEFORE, **SIZE)
    await admitted(actor, now=BEFORE, prompt_tokens=5, max_tokens=5)
    assert (await accounts())["key"] == ("2030-02-01", "2030-02-01", 30, 30)
    await balances()


async def test_leases_and_buckets_go_by_the_clock(world: Any, admitted: Any) -> None:
    actor = await sync_to_async(world.actor)("acme")
    await admitted(actor, now=MIDNIGHT + timedelta(hours=3), **SIZE)
    actor.key.requests_per_minute, actor.key.max_concurrent = 2, 3
    await sync_to_async(actor.key.save)()
    early = MIDNIGHT - timedelta(hours=5)
    for seconds in (0, 0, 40):
        await admitted(actor, now=early + timedelta(seconds=seconds), **SIZE)
    with pytest.raises(Denied, match="requests_per_minute"):  # 2 at first, 4/3 more after 40 s, 1/3 after 50
        await admitted(actor, now=early + timedelta(seconds=50), **SIZE)
    requests = await sync_to_async(lambda: list(InferenceRequest.objects.unscoped().order_by("id")))()
    assert [request.admitted_at for request in requests[1:]] == [MIDNIGHT] * 3, "the day that the tenant has come to"
    assert requests[-1].lease_expires_at - early < timedelta(minutes=5)


async def test_the_real_clock_does_not_go_back_behind_its_accounts(world: Any, admitted: Any, db_pool: Pool) -> None:
    actor = await sync_to_async(world.actor)("acme", tokens_per_day=50)
    tomorrow = datetime.now(UTC).replace(hour=0, minute=5, second=0, microsecond=0) + timedelta(days=1)
    await admitted(actor, now=tomorrow, **SIZE)
    request_id = await admitted(actor, **SIZE)
    with pytest.raises(Denied, match="tokens_per_day"):
        await admitted(actor, **SIZE)
    [stands] = await sync_to_async(standing)(actor.tenant)
    assert stands["limits"]["tokens_per_day"] == {"limit": 50, "used": 40, "left": 10}
    assert (await accounts())["tenant"][0] == tomorrow.date().isoformat()
    await settled(db_pool, request_id, 10)
    await balances()
    assert await sync_to_async(rollups.rebuild)() == 1, "also of the hour that is not yet"
    await balances()


async def test_a_clock_that_was_days_ahead_holds_up_nobody(world: Any, admitted: Any) -> None:
    actor = await sync_to_async(world.actor)("acme", tokens_per_day=30)
    await admitted(actor, now=AFTER + timedelta(days=1), **SIZE)
    await admitted(actor, now=BEFORE, **SIZE)
    assert (await accounts())["tenant"] == ("2030-01-31", "2030-01-01", 20, 20)
    await balances()
