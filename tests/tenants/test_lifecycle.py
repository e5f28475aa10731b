"""Requests begin, end, die and are reaped in any order: the leases and the ledger always add up."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenants.admission import LEASE, admit
from tenants.db import open_pool
from tenants.errors import Denied
from tenants.models import InferenceRequest, LedgerEntry
from tenants.settlement import reap, settle

START = datetime(2000, 1, 1, tzinfo=UTC)
STEPS = st.lists(
    st.one_of(
        st.just(("admit", 0)),
        st.tuples(st.just("settle"), st.integers(0, 5)),
        st.tuples(st.just("wait"), st.sampled_from([1, 10, 29, 30, 31])),
        st.just(("reap", 0)),
    ),
    max_size=25,
)


class Life:
    """The model: who was admitted until when, and who has a ledger row."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.now = START
        self.until: dict[UUID, datetime] = {}
        self.settled: set[UUID] = set()

    def alive(self) -> int:
        return sum(until > self.now for request, until in self.until.items() if request not in self.settled)

    def expired(self) -> set[UUID]:
        return {request for request, until in self.until.items() if until <= self.now} - self.settled


@pytest.mark.usefixtures("grant_keys")
def test_leases_and_ledger_add_up(world: Any, new_id: Any) -> None:
    counter = iter(range(10**9))
    model = world.served()

    async def step(pool: Any, life: Life, access: Any, what: str, value: int) -> None:
        match what:
            case "wait":
                life.now += timedelta(seconds=value)
            case "admit":
                request_id, possible = new_id(), life.alive() < life.limit
                refusal = None
                try:
                    await admit(
                        pool,
                        request_id=request_id,
                        access=access,
                        model=model,
                        prompt_tokens=3,
                        max_tokens=5,
                        now=life.now,
                    )
                    life.until[request_id] = life.now + LEASE
                except Denied as denied:
                    refusal = denied.code
                assert refusal == (None if possible else "concurrency_limit_exceeded")
            case "settle" if life.until:
                request_id = list(life.until)[value % len(life.until)]
                first = await settle(
                    pool,
                    request_id=request_id,
                    prompt_tokens=3,
                    cached_tokens=0,
                    completion_tokens=value,
                    outcome="completed",
                    finish_reason="stop",
                )
                assert first == (request_id not in life.settled)
                life.settled.add(request_id)
            case "reap":
                expired = life.expired()
                assert await reap(pool, now=life.now) == len(expired)
                life.settled |= expired

    async def live(pool: Any, steps: list[tuple[str, int]], actor: Any, life: Life) -> None:
        for what, value in steps:
            await step(pool, life, actor.access(), what, value)
        await reap(pool, now=life.now + 2 * LEASE)

    with asyncio.Runner() as runner:
        pool = open_pool(min_size=1, max_size=1)
        runner.run(pool.open())

        @settings(max_examples=60, deadline=None)
        @given(steps=STEPS, limit=st.integers(1, 3))
        def check(steps: list[tuple[str, int]], limit: int) -> None:
            actor, life = world.actor(f"t{next(counter)}", max_concurrent=limit), Life(limit)
            runner.run(live(pool, steps, actor, life))
            entries = LedgerEntry.objects.filter(tenant=actor.tenant)
            assert sorted(entries.values_list("request_id", flat=True)) == sorted(life.until)
            assert not InferenceRequest.objects.filter(tenant=actor.tenant, state="running").exists()

        try:
            check()
        finally:
            runner.run(pool.close())
