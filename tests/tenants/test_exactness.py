"""Limits are exact with many processes at once, and a killed process costs nobody anything."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from multiprocessing.sharedctypes import Synchronized
from random import Random
from typing import Any
from uuid import UUID

import pytest
from django.db import connection
from psycopg_pool import AsyncConnectionPool

from tenants.access import Access, ServedModel
from tenants.admission import admit
from tenants.errors import Denied
from tenants.models import InferenceRequest, LedgerEntry
from tenants.reconciliation import reconcile
from tenants.settlement import checkpoint, reap, settle

PROCESSES, ATTEMPTS, IN_FLIGHT = 8, 500, 5
FIXED = datetime(2030, 1, 1, tzinfo=UTC)
fork = multiprocessing.get_context("fork")

pytestmark = [pytest.mark.usefixtures("grant_keys"), pytest.mark.slow]


def pool_on(dsn: str, size: int = IN_FLIGHT) -> Any:
    return AsyncConnectionPool(dsn, kwargs={"autocommit": True}, min_size=size, max_size=size, open=False)


def in_processes(dsn: str, client: Callable[[Any], Any]) -> list[Any]:
    """Run the coroutine function ``client(pool)`` in each of several processes; what each returned."""

    def child(pipe: Any) -> None:
        async def run() -> Any:
            async with pool_on(dsn) as pool:
                return await client(pool)

        pipe.send(asyncio.run(run()))
        os._exit(0)  # nothing of the parent's (its database connection, its atexit handlers) is touched

    pairs = []
    for _ in range(PROCESSES):
        ours, theirs = fork.Pipe(duplex=False)
        process = fork.Process(target=child, args=(theirs,))
        process.start()
        theirs.close()
        pairs.append((process, ours))
    results = [pipe.recv() for _, pipe in pairs]  # EOFError when a child failed
    for process, _ in pairs:
        process.join()
    return results


def attempts(
    access: Access, model: ServedModel, new_id: Any, now: datetime | None, each: int = ATTEMPTS
) -> Callable[[Any], Any]:
    async def client(pool: Any) -> tuple[int, set[str]]:
        codes: list[str | None] = []

        async def some() -> None:
            for _ in range(each // IN_FLIGHT):
                try:
                    await admit(
                        pool,
                        request_id=new_id(),
                        access=access,
                        model=model,
                        prompt_tokens=1,
                        max_tokens=1,
                        now=now,
                    )
                    codes.append(None)
                except Denied as denied:
                    codes.append(denied.code)

        await asyncio.gather(*(some() for _ in range(IN_FLIGHT)))
        return codes.count(None), {code for code in codes if code}

    return client


EACH = {"requests_per_minute": 1, "max_concurrent": 1, "budget_hard": 3}
"""What one request takes of a limit: 1 + 1 tokens, at 1 and 2 micro-units."""


@pytest.mark.parametrize("whose", ["tenant", "member", "key"])
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
def test_exactly_the_limit_is_admitted(limit: str, code: str, whose: str, world: Any, dsn: str, new_id: Any) -> None:
    """Eight processes with 500 attempts each (100 for members and keys), and nothing of the limit is left over."""
    world.price(1_000_000, 0, 2_000_000)
    limits = {limit: 137 * EACH.get(limit, 2)}
    actor = world.actor("acme", **(limits if whose == "tenant" else {f"{whose}_limits": limits}))
    connection.close()
    each = ATTEMPTS if whose == "tenant" else 100
    results = in_processes(dsn, attempts(actor.access(), world.served(), new_id, FIXED, each))
    assert sum(admitted for admitted, _ in results) == 137
    assert set.union(*(codes for _, codes in results)) == {code}
    assert InferenceRequest.objects.filter(tenant=actor.tenant).count() == 137
    assert reconcile().ok


@pytest.mark.parametrize("limit", ["tokens_per_minute", "tokens_per_day", "budget_hard"])
def test_requests_of_all_sizes_fill_the_limit(limit: str, world: Any, dsn: str, new_id: Any) -> None:
    """Some say how much they want and some take what fits; together they never hold more than there is."""
    world.price(1_000_000, 0, 1_000_000)
    most = 3001
    actor = world.actor("acme", **{limit: most})
    access, model = actor.access(), world.served()

    async def client(pool: Any) -> int:
        random, held = Random(os.getpid()), 0
        sizes = [(random.randint(1, 9), random.choice([None, *range(1, 60)])) for _ in range(60)]
        for prompt, wanted in sizes + [(1, 1)] * (most // 2):  # what is left at last, the smallest take
            try:
                admitted = await admit(
                    pool,
                    request_id=new_id(),
                    access=access,
                    model=model,
                    prompt_tokens=prompt,
                    max_tokens=wanted,
                    now=FIXED,
                )
            except Denied:
                if (prompt, wanted) == (1, 1):
                    break
                continue
            held += prompt + admitted.max_tokens
        return held

    connection.close()
    left = most - sum(in_processes(dsn, client))
    assert left in (0, 1), "a single token is less than any request needs"
    assert reconcile().ok


def test_the_rate_is_exact_on_the_real_clock(world: Any, dsn: str, new_id: Any) -> None:
    actor = world.actor("acme", requests_per_minute=240)
    connection.close()
    in_processes(dsn, attempts(actor.access(), world.served(), new_id, None))
    times = sorted(InferenceRequest.objects.filter(tenant=actor.tenant).values_list("admitted_at", flat=True))
    level = 240.0
    for before, after in zip(times[:1] + times, times, strict=False):
        level = min(240.0, level + (after - before).total_seconds() * 4) - 1
        assert level > -1e-3, "admitted without a token in the bucket"
    elapsed = (times[-1] - times[0]).total_seconds()
    assert 240 <= len(times) <= 240 + elapsed * 4 + 1


def test_never_more_at_once_than_allowed(world: Any, dsn: str, new_id: Any) -> None:
    limit = 6
    actor = world.actor("acme", max_concurrent=limit)
    access, model = actor.access(), world.served()
    running: Synchronized[int] = fork.Value("i", 0)
    most: Synchronized[int] = fork.Value("i", 0)

    async def client(pool: Any) -> int:
        async def some() -> int:
            done = 0
            for _ in range(20):
                request_id = new_id()
                try:
                    await admit(pool, request_id=request_id, access=access, model=model, prompt_tokens=1, max_tokens=1)
                except Denied:
                    continue
                with running.get_lock():
                    running.value += 1
                    most.value = max(most.value, running.value)
                await asyncio.sleep(0.002)
                with running.get_lock():
                    running.value -= 1
                assert await settle(
                    pool,
                    request_id=request_id,
                    prompt_tokens=1,
                    cached_tokens=0,
                    completion_tokens=1,
                    outcome="completed",
                    finish_reason="stop",
                )
                done += 1
            return done

        return sum(await asyncio.gather(*(some() for _ in range(IN_FLIGHT))))

    connection.close()
    done = sum(in_processes(dsn, client))
    assert 1 < most.value <= limit
    assert LedgerEntry.objects.filter(tenant=actor.tenant).count() == done
    assert not InferenceRequest.objects.filter(tenant=actor.tenant, state="running").exists()


def test_processes_that_share_tenants_never_wait_in_a_circle(world: Any, dsn: str, new_id: Any) -> None:
    """Statements of several tenants' admissions and settlements, beside checkpoints of all that runs and the reaper."""
    actors = [world.actor(f"t{number}", max_concurrent=3, key_limits={"tokens_per_day": 10**6}) for number in range(10)]
    callers, model = [actor.access() for actor in actors], world.served()

    async def client(pool: Any) -> int:
        random, running, done = Random(os.getpid()), dict[UUID, int](), 0

        async def some() -> None:
            nonlocal done
            for _ in range(30):
                access, request_id = random.choice(callers), new_id()
                try:
                    await admit(pool, request_id=request_id, access=access, model=model, prompt_tokens=1, max_tokens=9)
                except Denied:
                    continue
                running[request_id] = random.randint(1, 9)
                await asyncio.sleep(random.random() / 100)
                ours = await settle(
                    pool,
                    request_id=request_id,
                    tenant_id=access.tenant_id,
                    prompt_tokens=1,
                    cached_tokens=0,
                    completion_tokens=running.pop(request_id),
                    outcome="completed",
                    finish_reason="stop",
                )
                done += ours

        async def beside() -> None:
            while not over.is_set():
                await checkpoint(pool, dict(running))
                await reap(pool)

        over = asyncio.Event()
        keeping = asyncio.create_task(beside())
        await asyncio.gather(*(some() for _ in range(2 * IN_FLIGHT)))
        over.set()
        await keeping
        return done

    deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
    with connection.cursor() as cursor:
        cursor.execute(deadlocks)
        before = cursor.fetchone()
    connection.close()
    done = sum(in_processes(dsn, client))
    assert done == LedgerEntry.objects.unscoped().count() == InferenceRequest.objects.unscoped().count() > 100
    assert reconcile().ok
    with connection.cursor() as cursor:
        cursor.execute(deadlocks)
        assert cursor.fetchone() == before


def test_a_killed_process_is_settled_once(world: Any, dsn: str, new_id: Any) -> None:
    actor = world.actor("acme", max_concurrent=1)
    access, model, request_id = actor.access(), world.served(), new_id()
    ready, written = os.pipe()

    async def client() -> None:
        async with pool_on(dsn, 1) as pool:
            await admit(pool, request_id=request_id, access=access, model=model, prompt_tokens=10, max_tokens=99)
            await checkpoint(pool, {request_id: 7})
            os.write(written, b"!")
            await asyncio.sleep(60)

    connection.close()
    process = fork.Process(target=lambda: asyncio.run(client()))
    process.start()
    assert os.read(ready, 1) == b"!"
    os.kill(process.pid or 0, signal.SIGKILL)
    process.join()
    assert process.exitcode == -signal.SIGKILL

    async def afterwards() -> tuple[list[int], bool]:
        later = datetime.now(UTC) + timedelta(seconds=31)
        async with pool_on(dsn, 3) as pool:
            with pytest.raises(Denied, match="max_concurrent"):
                await admit(pool, request_id=new_id(), access=access, model=model, prompt_tokens=1, max_tokens=1)
            reaped = await asyncio.gather(*(reap(pool, now=later) for _ in range(3)))
            await admit(pool, request_id=new_id(), access=access, model=model, prompt_tokens=1, max_tokens=1)
            late = await settle(
                pool,
                request_id=request_id,
                prompt_tokens=10,
                cached_tokens=0,
                completion_tokens=50,
                outcome="completed",
                finish_reason="stop",
            )
            return list(reaped), late

    reaped, late = asyncio.run(afterwards())
    assert (sum(reaped), late) == (1, False)
    [entry] = LedgerEntry.objects.filter(tenant=actor.tenant)
    assert (entry.request_id, entry.completion_tokens, entry.outcome) == (request_id, 7, "abandoned")
    assert isinstance(entry.request_id, UUID)
