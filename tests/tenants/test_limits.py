"""Limits on tenant, member and key: the tightest decides and is named; quotas, budgets, what fits below them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from asgiref.sync import sync_to_async

from tenants.access import authenticate
from tenants.admission import Admitted, admit
from tenants.db import Pool
from tenants.errors import Denied
from tenants.models import Account, LedgerEntry
from tenants.settlement import settle
from tenants.standing import standing

START = datetime(2030, 1, 31, 23, 0, tzinfo=UTC)
HOUR = timedelta(hours=1)

pytestmark = pytest.mark.usefixtures("grant_keys", "orm_thread")


class Caller:
    def __init__(self, pool: Pool, world: Any, actor: Any, new_id: Callable[[], UUID]) -> None:
        self.pool, self.world, self.actor, self.new_id = pool, world, actor, new_id
        self.ids: list[UUID] = []

    async def __call__(self, prompt: int = 10, max_tokens: int | None = 10, **options: Any) -> Admitted:
        request_id = self.new_id()
        options.setdefault("now", START)
        options.setdefault("model", self.world.served())
        admitted = await admit(
            self.pool,
            request_id=request_id,
            access=self.actor.access(),
            prompt_tokens=prompt,
            max_tokens=max_tokens,
            **options,
        )
        self.ids.append(request_id)
        return admitted

    async def denied(self, *args: Any, **options: Any) -> Denied:
        with pytest.raises(Denied) as caught:
            await self(*args, **options)
        return caught.value

    async def settle(self, index: int, prompt: int, completion: int, cached: int = 0) -> None:
        assert await settle(
            self.pool,
            request_id=self.ids[index],
            prompt_tokens=prompt,
            cached_tokens=cached,
            completion_tokens=completion,
            outcome="completed",
            finish_reason="stop",
        )

    @sync_to_async
    def account(self, subject: str = "tenant") -> Account:
        found: Account = Account.objects.get(tenant=self.actor.tenant, subject=subject)
        return found


@pytest.fixture
def caller(world: Any, db_pool: Pool, new_id: Callable[[], UUID]) -> Callable[..., Any]:
    async def make(slug: str = "acme", **limits: Any) -> Caller:
        return Caller(db_pool, world, await sync_to_async(world.actor)(slug, **limits), new_id)

    return make


WHOSE: dict[str, Callable[[dict[str, int]], dict[str, Any]]] = {
    "tenant": lambda limits: limits,
    "member": lambda limits: {"member_limits": limits},
    "key": lambda limits: {"key_limits": limits},
}


@pytest.mark.parametrize("whose", WHOSE)
@pytest.mark.parametrize(
    ("limits", "code", "status", "remaining"),
    [
        ({"requests_per_minute": 1}, "rate_limit_exceeded", 429, 0),
        ({"tokens_per_minute": 39}, "rate_limit_exceeded", 429, 19),
        ({"max_concurrent": 1}, "concurrency_limit_exceeded", 429, 0),
        ({"tokens_per_day": 39}, "insufficient_quota", 429, 19),
        ({"tokens_per_month": 39}, "insufficient_quota", 429, 19),
        ({"budget_hard": 59}, "insufficient_quota", 429, 29),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
async def test_every_limit_on_everybody(
    whose: str, limits: dict[str, int], code: str, status: int, remaining: int, caller: Any, world: Any
) -> None:
    await sync_to_async(world.price)(1_000_000, 0, 2_000_000)  # 10 + 10 tokens: 30 micro-units
    call = await caller(**WHOSE[whose](limits))
    await call()
    denied = await call.denied()
    assert (denied.code, denied.status, denied.limit, denied.subject) == (code, status, next(iter(limits)), whose)
    assert denied.remaining == remaining
    assert denied.limits is not None


async def test_a_refusal_says_that_the_request_costs_too_much(caller: Any, world: Any) -> None:
    await sync_to_async(world.price)(1_000_000, 0, 2_000_000)
    call = await caller(budget_hard=59)
    await call()
    denied = await call.denied()
    assert "10 + 10 tokens, which cost more than is left of your limit budget_hard: 29 of 59" in denied.message
    await call(max_tokens=9)


@pytest.mark.parametrize("most", [1, 2])
async def test_how_many_run_already(most: int, caller: Any) -> None:
    call = await caller(max_concurrent=most)
    for _ in range(most):
        await call()
    words = "1 request is running already" if most == 1 else "2 requests are running already"
    assert words in (await call.denied()).message


@pytest.mark.parametrize("whose", WHOSE)
async def test_sizes_on_everybody(whose: str, caller: Any) -> None:
    call = await caller(**WHOSE[whose]({"max_input_tokens": 20, "max_output_tokens": 30}))
    assert ((await call.denied(21)).limit, (await call.denied(10, 31)).subject) == ("max_input_tokens", whose)
    assert (await call(20, None)).max_tokens == 30


async def test_the_tightest_is_named(caller: Any) -> None:
    call = await caller(requests_per_minute=2, key_limits={"requests_per_minute": 1}, member_limits={})
    assert (await call()).limits.limit_requests == 1
    denied = await call.denied()
    assert (denied.subject, denied.retry_after) == ("key", 60.0)
    assert "this API key's limit requests_per_minute of 1" in denied.message.replace("This", "this")


async def test_of_two_waits_the_longer_is_named(caller: Any) -> None:
    call = await caller(requests_per_minute=2, key_limits={"requests_per_minute": 1})
    await call()
    await call(now=START + timedelta(seconds=60))
    denied = await call.denied(now=START + timedelta(seconds=60))
    assert (denied.subject, denied.retry_after) == ("key", 60.0)


async def test_of_several_reasons_the_one_that_lasts(caller: Any) -> None:
    call = await caller(requests_per_minute=1, max_concurrent=1, tokens_per_day=30)
    await call()
    assert (await call.denied()).limit == "tokens_per_day"
    assert (await call.denied(5, 5)).limit == "max_concurrent"
    await call.settle(0, 10, 10)
    assert (await call.denied(5, 5)).limit == "requests_per_minute"


async def test_what_no_bucket_can_hold_is_not_to_be_tried_again(caller: Any) -> None:
    call = await caller(tokens_per_minute=15)
    denied = await call.denied()
    assert (denied.code, denied.retry_after, denied.limit) == ("rate_limit_exceeded", None, "tokens_per_minute")
    assert "never" in denied.message


async def test_tokens_refill_and_come_back(caller: Any) -> None:
    call = await caller(tokens_per_minute=60)
    admitted = await call(10, 50)
    assert (admitted.limits.limit_tokens, admitted.limits.remaining_tokens) == (60, 0)
    assert admitted.limits.reset_tokens_seconds == 60.0
    assert (await call.denied(10, 10)).retry_after == 20.0
    await call.settle(0, 10, 30)  # 20 were not needed
    admitted = await call(10, 10)
    assert admitted.limits.remaining_tokens == 0
    await call(1, 9, now=START + timedelta(seconds=10))


async def test_a_hold_from_before_the_limit_gives_the_bucket_nothing(caller: Any) -> None:
    call = await caller()
    await call(10, 500)
    call.actor.tenant.tokens_per_minute = 100
    await sync_to_async(call.actor.tenant.save)()
    later = START + timedelta(seconds=1)
    await call(10, 90, now=later)
    await call.settle(0, 10, 0)
    assert (await call.denied(1, 1, now=later)).limit == "tokens_per_minute"


async def test_quotas_end_with_their_day_and_month(caller: Any) -> None:
    call = await caller(tokens_per_day=30, tokens_per_month=30)
    await call()
    denied = await call.denied()
    assert (denied.limit, denied.retry_after) == ("tokens_per_month", 3600.0)
    await call(now=START + HOUR)  # the first of February
    denied = await call.denied(now=START + 2 * HOUR)
    assert (denied.limit, denied.retry_after) == ("tokens_per_month", (28 * 24 - 1) * 3600.0)
    account = await call.account()
    assert (str(account.day), str(account.month), account.day_tokens) == ("2030-02-01", "2030-02-01", 20)
    await call.settle(0, 10, 1)  # admitted in January: February's sums are not touched
    account = await call.account()
    assert (account.day_tokens, account.month_tokens, account.held_tokens, account.settled_tokens) == (20, 20, 20, 11)


async def test_unspecified_output_shrinks_to_what_fits(caller: Any, world: Any) -> None:
    await sync_to_async(world.price)(1_000_000, 0, 3_000_000)
    for limits, fits in (
        ({"tokens_per_minute": 50}, 40),
        ({"tokens_per_day": 51}, 41),
        ({"tokens_per_month": 52}, 42),
        ({"budget_hard": 10 + 3 * 43 + 2}, 43),
        ({"max_output_tokens": 44}, 44),
        ({"tokens_per_day": 60, "key_limits": {"tokens_per_minute": 55}}, 45),
        ({}, 990),
    ):
        call = await caller(f"t{fits}", **limits)
        assert (await call(10, None)).max_tokens == fits, limits
        if fits < 990 and "max_output_tokens" not in limits:
            assert (await call.denied(10, None)).status == 429


async def test_a_default_shrinks_as_well_and_is_no_more_than_it_says(caller: Any) -> None:
    call = await caller(max_output_tokens=20)
    assert (await call(10, None, at_most=16)).max_tokens == 16
    assert (await call(10, None, at_most=16, choices=3)).max_tokens == 6, "20 over three"
    assert (await call(10, None, at_most=21)).max_tokens == 20


async def test_choices_share_one_prompt(caller: Any) -> None:
    call = await caller(tokens_per_day=100, max_output_tokens=60)
    assert (await call(10, None, choices=3)).max_tokens == 20
    account = await call.account()
    assert account.held_tokens == 10 + 3 * 20
    denied = await call.denied(10, 21, choices=3)
    assert (denied.limit, denied.param) == ("max_output_tokens", "max_tokens")
    assert "3 × 21" in denied.message
    assert (await call(10, None, choices=3)).max_tokens == 6, "20 of 30 over three"
    for choices, max_tokens in ((0, 1), (2**20, 2**20)):
        assert (await call.denied(10, max_tokens, choices=choices)).code == "invalid_value"


async def test_the_grant_is_over_all_choices(caller: Any) -> None:
    call = await caller()
    admitted = await call(10, 7, choices=4)
    assert (admitted.grant.max_input, admitted.grant.max_output, admitted.max_tokens) == (10, 28, 7)


async def test_money(caller: Any, world: Any) -> None:
    """Held at the whole price, settled at what was used; rounded up, once."""
    await sync_to_async(world.price)(300_000, 100_000, 700_001)
    call = await caller(budget_soft=20, budget_hard=30)
    admitted = await call(10, 20)
    assert admitted.cost == -(-(10 * 300_000 + 20 * 700_001) // 1_000_000) == 18
    assert not admitted.limits.over_soft_budget
    assert (await call.denied(10, 20)).remaining == 12
    await call.settle(0, 10, 3, cached=4)
    cost = -(-(6 * 300_000 + 4 * 100_000 + 3 * 700_001) // 1_000_000)
    account = await call.account()
    assert (account.month_cost, account.settled_cost, account.held_cost) == (cost, cost, 0)
    assert (await call(10, 20)).cost == 18
    assert (await call(1, 1)).limits.over_soft_budget


async def test_a_price_is_fixed_at_admission(caller: Any, world: Any) -> None:
    make_price = sync_to_async(world.price)
    await make_price(1_000_000, 0, 1_000_000)
    call = await caller()
    assert (await call()).cost == 20
    await make_price(9_000_000, 0, 9_000_000, valid_from=START + HOUR)
    assert (await call()).cost == 20, "not in force yet"
    assert (await call(now=START + HOUR)).cost == 180
    await make_price(5_000_000, 0, 5_000_000, plan=world.plan)
    assert (await call(now=START + HOUR)).cost == 100, "the plan's own goes first"
    await call.settle(0, 10, 10)
    assert (await sync_to_async(LedgerEntry.objects.get)(tenant=call.actor.tenant)).cost == 20


async def test_without_a_price_a_budget_refuses_nothing(caller: Any) -> None:
    call = await caller(budget_hard=0)
    assert (await call()).cost == 0


async def test_a_limit_that_comes_later_knows_what_was_used(caller: Any) -> None:
    """A key's account is opened when it gets its first limit, at what the ledger says."""
    call = await caller()
    await call(10, 30)
    await call.settle(0, 10, 15)
    await call(10, 30)
    call.actor.key.tokens_per_day = 100
    await sync_to_async(call.actor.key.save)()
    denied = await call.denied(10, 26)
    assert (denied.subject, denied.remaining) == ("key", 35)
    await call(10, 25)
    account = await call.account(f"key:{call.actor.key.pk}")
    assert (account.settled_tokens, account.held_tokens, account.settled_count) == (25, 75, 1)
    await call.settle(1, 10, 0)
    assert (await call.account(f"key:{call.actor.key.pk}")).day_tokens == 25 + 10 + 35


async def test_what_was_used_is_shown_where_it_is_more_than_the_limit(caller: Any, world: Any) -> None:
    await sync_to_async(world.price)(1_000_000, 1_000_000, 1_000_000)
    call = await caller()
    await call(10, 19, now=datetime.now(UTC))
    await call.settle(0, 10, 19)
    tenant = call.actor.tenant
    tenant.budget_soft, tenant.tokens_per_month, tenant.tokens_per_minute = 5, 20, 7
    await sync_to_async(tenant.save)()
    limits = (await sync_to_async(standing)(tenant))[0]["limits"]
    assert limits["budget_soft"] == {"limit": 5, "used": 29, "left": 0}
    assert limits["tokens_per_month"] == {"limit": 20, "used": 29, "left": 0}
    assert limits["tokens_per_minute"]["left"] <= 7


async def test_members_share_among_their_keys_and_keys_do_not(caller: Any, world: Any) -> None:
    call = await caller(member_limits={"tokens_per_day": 50})
    await call()
    await call()
    other = await sync_to_async(world.actor)("other")
    other.key.tenant, other.key.member = call.actor.tenant, call.actor.key.member
    await sync_to_async(other.key.save)()
    second = Caller(call.pool, world, type(other)(call.actor.tenant, other.key, ""), call.new_id)
    assert (await second.denied()).subject == "member"
    await second(5, 5)


async def test_keys_and_members_restricted_to_models(caller: Any, world: Any, db_pool: Pool) -> None:
    call = await caller(member_limits={})
    pirate = await sync_to_async(world.adapter)(call.actor.tenant, "pirate")
    emoji = await sync_to_async(world.adapter)(call.actor.tenant, "emoji")
    key, member = call.actor.key, call.actor.key.member

    async def allowed(served: Any) -> bool:
        try:
            await call(model=served)
        except Denied as denied:
            return denied.code != "model_not_found"
        return True

    async def usable() -> set[str]:
        listed = set((await authenticate(db_pool, call.actor.secret)).models)
        admitted = set()
        for served in (world.served(), world.served(pirate), world.served(emoji)):
            if await allowed(served):
                admitted.add(served.id)
        assert admitted == listed
        return {name.partition("/")[2] or name for name in listed}

    assert await usable() == {"llama-tiny", "pirate", "emoji"}
    for holder, only_models, only_adapters, expected in (
        (key, [], [pirate.pk], {"pirate"}),
        (key, [world.base.pk], None, {"llama-tiny", "pirate", "emoji"}),
        (key, [], None, {"pirate", "emoji"}),
        (member, None, [emoji.pk], {"emoji"}),
        (member, [], [], set()),
    ):
        holder.only_models, holder.only_adapters = only_models, only_adapters
        await sync_to_async(holder.save)()
        assert await usable() == expected
