"""admit(): every limit, named; refusals that consume nothing; and the bucket against a model of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import jwt
import psycopg
import pytest
from asgiref.sync import sync_to_async
from django.conf import settings as django_settings
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.protocol import GENERATE_AUDIENCE, GRANT_ALGORITHM, Grant
from tenants import grants
from tenants.admission import Admitted, admit
from tenants.db import Pool
from tenants.errors import Denied
from tenants.models import Account, AdapterAllowance, InferenceRequest, ModelAllowance
from tenants.settlement import settle

NewId = Callable[[], UUID]
START = datetime(2030, 1, 1, tzinfo=UTC)

pytestmark = pytest.mark.usefixtures("grant_keys", "orm_thread")


class Caller:
    """Admits for one actor; remembers ids so that a test can settle them."""

    def __init__(self, pool: Pool, world: Any, actor: Any, new_id: NewId) -> None:
        self.pool, self.world, self.actor, self.new_id = pool, world, actor, new_id
        self.ids: list[UUID] = []

    async def __call__(self, prompt: int = 10, max_tokens: int | None = 10, **options: Any) -> Admitted:
        request_id = self.new_id()
        model = options.pop("model", None) or self.world.served()
        admitted = await admit(
            self.pool,
            request_id=request_id,
            access=self.actor.access(),
            model=model,
            prompt_tokens=prompt,
            max_tokens=max_tokens,
            **options,
        )
        self.ids.append(request_id)
        return admitted

    async def denied(self, *args: Any, **options: Any) -> Denied:
        before = await sync_to_async(self._consumed)()
        with pytest.raises(Denied) as caught:
            await self(*args, **options)
        assert await sync_to_async(self._consumed)() == before, "a refusal consumed something"
        return caught.value

    def _consumed(self) -> tuple[object, ...]:
        used = Account.objects.unscoped().exclude(held_tokens=0, settled_count=0)
        return list(used.order_by("id").values_list()), InferenceRequest.objects.unscoped().count()


@pytest.fixture
def actor(world: Any) -> Any:
    return world.actor("acme")


@pytest.fixture
def call(world: Any, actor: Any, db_pool: Pool, new_id: NewId) -> Caller:
    return Caller(db_pool, world, actor, new_id)


def limit(actor: Any, **limits: int | None) -> Any:
    """Set the tenant's limits from an async test."""

    def write() -> None:
        for name, value in limits.items():
            setattr(actor.tenant, name, value)
        actor.tenant.save()

    return sync_to_async(write)()


async def test_the_grant_says_what_was_admitted(call: Caller, actor: Any, world: Any) -> None:
    adapter = await sync_to_async(world.adapter)(actor.tenant, "pirate")
    admitted = await call(12, 34, model=world.served(adapter))
    claims = jwt.decode(
        grants.signed_now(admitted.grant),
        Path(django_settings.GRANT_PUBLIC_KEY_FILE).read_bytes(),  # noqa: ASYNC240
        algorithms=[GRANT_ALGORITHM],
        audience=GENERATE_AUDIENCE,
    )
    grant = Grant.from_claims(claims)
    assert grant.request_id == str(call.ids[0])
    assert (grant.tenant, grant.namespace) == (str(actor.tenant.pk), actor.tenant.namespace)
    assert (grant.base, grant.adapter) == (world.base.fingerprint, adapter.current.digest)
    assert (grant.max_input, grant.max_output, grant.weight) == (12, 34, 1)
    assert admitted.limits.limit_requests is None


async def test_max_input(call: Caller, actor: Any) -> None:
    await limit(actor, max_input_tokens=50)
    await call(50)
    denied = await call.denied(51)
    assert (denied.status, denied.code) == (400, "context_length_exceeded")
    assert (denied.limit, denied.param) == ("max_input_tokens", "messages")
    assert "50" in denied.message
    assert "51" in denied.message


async def test_max_output(call: Caller, actor: Any) -> None:
    await limit(actor, max_output_tokens=50)
    assert (await call(10, 50)).max_tokens == 50
    denied = await call.denied(10, 51)
    assert (denied.status, denied.code) == (400, "max_output_tokens_exceeded")
    assert (denied.limit, denied.param) == ("max_output_tokens", "max_tokens")
    assert (await call(10, None)).max_tokens == 50, "unspecified shrinks to the limit"
    assert (await call(980, None)).max_tokens == 20, "and to the context"


async def test_context(call: Caller) -> None:
    assert (await call(999, 1)).max_tokens == 1
    for prompt, max_tokens in ((999, 2), (1000, None), (1000, 1)):
        denied = await call.denied(prompt, max_tokens)
        assert (denied.code, denied.limit) == ("context_length_exceeded", "context_length")


@pytest.mark.parametrize(("prompt", "max_tokens", "param"), [(0, 1, "messages"), (1, 0, "max_tokens"), (1, 2**31, "")])
async def test_nonsense_is_refused(call: Caller, prompt: int, max_tokens: int, param: str) -> None:
    denied = await call.denied(prompt, max_tokens)
    assert (denied.status, denied.param) == (400, param or "max_tokens")


async def test_concurrency(call: Caller, actor: Any) -> None:
    await limit(actor, max_concurrent=2)
    assert (await call()).limits.remaining_concurrent == 1
    assert (await call()).limits.remaining_concurrent == 0
    denied = await call.denied()
    assert (denied.status, denied.code, denied.limit) == (429, "concurrency_limit_exceeded", "max_concurrent")
    assert denied.retry_after is not None
    assert await settle(
        call.pool,
        request_id=call.ids[0],
        prompt_tokens=10,
        cached_tokens=0,
        completion_tokens=1,
        outcome="completed",
        finish_reason="stop",
    )
    await call()
    await call.denied()


async def test_leases_expire_by_themselves(call: Caller, actor: Any) -> None:
    await limit(actor, max_concurrent=1)
    await call(now=START)
    await call.denied(now=START + timedelta(seconds=29))
    await call(now=START + timedelta(seconds=31))


async def test_requests_per_minute(call: Caller, actor: Any) -> None:
    await limit(actor, requests_per_minute=3)
    for left in (2, 1, 0):
        admitted = await call(now=START)
        assert (admitted.limits.limit_requests, admitted.limits.remaining_requests) == (3, left)
    denied = await call.denied(now=START)
    assert (denied.status, denied.code, denied.limit) == (429, "rate_limit_exceeded", "requests_per_minute")
    assert denied.retry_after == 20.0
    assert denied.limits is not None
    assert denied.limits.reset_requests_seconds == 60.0
    await call.denied(now=START + timedelta(seconds=20) - timedelta(microseconds=1))
    await call(now=START + timedelta(seconds=20))


async def test_a_raised_limit_holds_at_once(call: Caller, actor: Any) -> None:
    await limit(actor, requests_per_minute=1)
    await call(now=START)
    await call.denied(now=START)
    await limit(actor, requests_per_minute=60)
    await call(now=START + timedelta(seconds=1))
    await limit(actor, requests_per_minute=None)
    await call(now=START + timedelta(seconds=1))


async def test_the_plan_speaks_where_the_tenant_is_silent(call: Caller, world: Any) -> None:
    world.plan.max_output_tokens = 5
    await sync_to_async(world.plan.save)()
    assert (await call.denied(10, 6)).limit == "max_output_tokens"


@pytest.mark.parametrize(
    ("what", "code", "status"),
    [
        ("revoked", "key_revoked", 401),
        ("expired", "key_revoked", 401),
        ("suspended", "tenant_suspended", 403),
        ("retired", "model_not_found", 404),
        ("disallowed", "model_not_found", 404),
    ],
)
async def test_state_is_read_in_the_transaction(
    what: str, code: str, status: int, call: Caller, actor: Any, world: Any
) -> None:
    await call()

    def change() -> None:
        match what:
            case "revoked":
                actor.key.revoked_at = datetime.now(UTC)
            case "expired":
                actor.key.expires_at = datetime.now(UTC)
            case "suspended":
                actor.tenant.state = "suspended"
            case "retired":
                world.base.state = "retired"
            case "disallowed":
                ModelAllowance.objects.filter(tenant=actor.tenant).delete()
        for row in (actor.key, actor.tenant, world.base):
            row.save()

    await sync_to_async(change)()
    denied = await call.denied()
    assert (denied.code, denied.status, denied.limits) == (code, status, None)


async def test_somebody_elses_adapter_needs_an_allowance(call: Caller, world: Any, actor: Any) -> None:
    other = await sync_to_async(world.actor)("globex")
    adapter = await sync_to_async(world.adapter)(other.tenant, "secret")
    served = world.served(adapter)
    denied = await call.denied(model=served)
    assert denied.code == "model_not_found"
    allowance = await sync_to_async(AdapterAllowance.objects.create)(tenant=actor.tenant, adapter=adapter)
    await call(model=served)
    await sync_to_async(allowance.delete)()
    await call.denied(model=served)


async def test_a_key_admits_only_for_its_own_tenant(call: Caller, world: Any, actor: Any, new_id: NewId) -> None:
    other = await sync_to_async(world.actor)("globex")
    forged = type(actor)(other.tenant, actor.key, actor.secret)
    assert (await Caller(call.pool, world, forged, new_id).denied()).code == "key_revoked"


async def test_an_id_is_admitted_once(call: Caller, world: Any, actor: Any) -> None:
    await call()
    with pytest.raises(psycopg.errors.UniqueViolation):
        await admit(
            call.pool,
            request_id=call.ids[0],
            access=actor.access(),
            model=world.served(),
            prompt_tokens=1,
            max_tokens=1,
        )


async def test_a_stuck_tenant_does_not_hold_up_others(call: Caller, world: Any, actor: Any, new_id: NewId) -> None:
    """Somebody stands still in one tenant's line; its callers wait, without taking every connection with them."""
    other = Caller(call.pool, world, await sync_to_async(world.actor)("globex"), new_id)
    await limit(actor, max_concurrent=100)
    await call()
    async with call.pool.connection() as blocker:
        async with blocker.transaction():
            await blocker.execute("SELECT tenants_stand_in_line(%s)", [actor.tenant.pk])
            waiting = [asyncio.create_task(call()) for _ in range(20)]
            await asyncio.sleep(0.2)
            async with asyncio.timeout(3):
                await other()
            assert not any(task.done() for task in waiting)
        await asyncio.gather(*waiting)


class BucketModel:
    """The bucket in fractions of a request: refills ``limit`` a minute up to ``limit``; one request takes 1.

    A clock that goes back gives nothing, and refills from there.
    """

    def __init__(self) -> None:
        self.level: Fraction | None = None
        self.at_us = 0

    def take(self, limit: int, now_us: int) -> bool:
        elapsed = min(max(now_us - self.at_us, 0), 60_000_000)
        level = Fraction(limit) if self.level is None else self.level + Fraction(elapsed * limit, 60_000_000)
        level = min(level, Fraction(limit))
        if level < 1:
            self.at_us = min(self.at_us, now_us)
            return False
        self.level, self.at_us = level - 1, now_us
        return True


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("limit"), st.integers(1, 7) | st.sampled_from([999, 2**31 - 1])),
        st.tuples(st.just("take"), st.integers(-5_000_000, 90_000_000)),
        st.tuples(st.just("take"), st.sampled_from([0, 1, 8_571_428, 8_571_429, 20_000_000, 59_999_999, 60_000_000])),
    ),
    min_size=1,
    max_size=30,
)


def test_the_bucket_equals_its_model(world: Any) -> None:
    """One connection in SQL, so that hypothesis can run many cases; clocks go forwards, stand still and go back."""
    from django.db import connection

    query = "SELECT code FROM tenants_decide(%s, %s, %s, %s, NULL, 1, 1, 1, interval '1 us', %s)"
    counter = iter(range(10**9))

    @settings(max_examples=150, deadline=None)
    @given(steps=STEPS)
    def check(steps: list[tuple[str, int]]) -> None:
        actor = world.actor(f"t{next(counter)}", requests_per_minute=3)
        model, limit, now_us = BucketModel(), 3, 0
        with connection.cursor() as cursor:
            for what, value in steps:
                if what == "limit":
                    limit = value
                    type(actor.tenant).objects.filter(pk=actor.tenant.pk).update(requests_per_minute=value)
                    continue
                now_us += value
                clock = START + timedelta(microseconds=now_us)
                cursor.execute(query, (uuid4(), actor.tenant.pk, actor.key.pk, world.base.pk, clock))
                [code] = cursor.fetchone()
                start_us = int(START.timestamp()) * 1_000_000
                assert (code is None) == model.take(limit, start_us + now_us), (limit, now_us, code)
                assert code in (None, "rate_limit_exceeded")

    check()
