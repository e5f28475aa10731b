"""Random lives of requests against a plain model: the same decisions, and after each step the books balance."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from django.db import connection
from hypothesis import given, settings
from hypothesis import strategies as st

from tenants.admission import admit
from tenants.db import open_pool
from tenants.errors import Denied
from tenants.models import Member, Tenant
from tenants.reconciliation import reconcile
from tenants.settlement import checkpoint, reap, settle, void
from tests.tenants.books import PRICE, Books, Subject

START = datetime(2030, 1, 31, 23, 58, tzinfo=UTC)
CONTEXT = 40

LIMITS = {
    "requests_per_minute": st.integers(1, 6),
    "tokens_per_minute": st.integers(1, 60),
    "max_concurrent": st.integers(1, 4),
    "tokens_per_day": st.integers(1, 120),
    "tokens_per_month": st.integers(1, 150),
    "budget_hard": st.integers(0, 80),
}
SUBJECTS = st.sampled_from(["tenant", "member", "one", "two"])
NTH = st.integers(-3, 6)
"""Which of the requests so far; negative: from the last."""

ONE_LIMIT = st.one_of(*(st.tuples(SUBJECTS, st.just(name), values) for name, values in LIMITS.items()))
ADMIT = st.tuples(
    st.just("admit"),
    st.sampled_from(["one", "one", "two"]),
    st.integers(1, 12),
    st.none() | st.integers(1, 12),
    st.sampled_from([1, 1, 1, 2, 3]),
)
STEP = st.sampled_from(
    [
        *[ADMIT] * 6,
        *[st.tuples(st.just("settle"), NTH, st.integers(0, 12), st.integers(0, 12))] * 3,
        st.tuples(st.just("void"), NTH),
        *[st.tuples(st.just("checkpoint"), NTH, st.integers(0, 12), st.integers(0, 12))] * 2,
        *[st.tuples(st.just("wait"), st.sampled_from([0.000001, 1, 7.5, 28.5, 29.5, 30, 61, 3600]))] * 3,
        st.just(("reap",)),
        st.tuples(st.just("limit"), ONE_LIMIT),
        st.tuples(st.just("limit"), st.tuples(SUBJECTS, st.sampled_from(list(LIMITS)), st.none())),
    ]
).flatmap(lambda step: step)


class Life:
    """The same steps in the database and in the model."""

    def __init__(self, pool: Any, world: Any, new_id: Any, slug: str) -> None:
        self.pool, self.world, self.new_id = pool, world, new_id
        first = world.actor(slug, member_limits={})
        second = world.actor(f"{slug}-second")
        second.key.tenant = first.tenant
        second.key.save()
        self.tenant: Tenant = first.tenant
        self.actors = {"one": first, "two": type(first)(first.tenant, second.key, "")}
        member: Member = first.key.member
        self.rows = {"tenant": first.tenant, "member": member, "one": first.key, "two": second.key}
        self.names = {
            "tenant": "tenant",
            f"member:{member.pk}": "member",
            f"key:{first.key.pk}": "one",
            f"key:{second.key.pk}": "two",
        }
        self.books = Books(
            {
                "tenant": Subject({"one", "two"}, {}),
                "member": Subject({"one"}, {}),
                "one": Subject({"one"}, {}),
                "two": Subject({"two"}, {}),
            },
            CONTEXT,
        )
        self.ids: list[UUID] = []
        self.clock = START

    async def step(self, what: str, *values: Any) -> None:
        match what:
            case "wait":
                self.clock += timedelta(seconds=values[0])
            case "reap":
                assert await reap(self.pool, now=self.clock) == self.books.reap(self.clock)
            case "admit":
                await self._admit(*values)
            case _ if self.ids:
                nth = values[0]
                request_id = self.ids[nth % len(self.ids) if nth >= 0 else max(nth, -len(self.ids))]
                await getattr(self, f"_{what}")(request_id, *values[1:])

    async def _admit(self, key: str, prompt: int, max_tokens: int | None, choices: int) -> None:
        request_id = self.new_id()
        want = (max_tokens or 1) * choices
        expected = self.books.refusal(key, prompt, want, self.clock)
        try:
            admitted = await admit(
                self.pool,
                request_id=request_id,
                access=self.actors[key].access(),
                model=self.world.served(),
                prompt_tokens=prompt,
                max_tokens=max_tokens,
                choices=choices,
                now=self.clock,
            )
        except Denied as denied:
            assert denied.limit in expected, denied  # noqa: PT017
            return
        assert not expected
        output = max_tokens or self.books.most(key, prompt, choices, self.clock)
        assert admitted.max_tokens == output
        self.books.admit(request_id, key, prompt, output * choices, self.clock)
        self.ids.append(request_id)

    async def _settle(self, request_id: UUID, cached: int, completion: int) -> None:
        prompt = self.books.requests[request_id].prompt
        cached = min(cached, prompt)
        settled = await settle(
            self.pool,
            request_id=request_id,
            prompt_tokens=prompt,
            cached_tokens=cached,
            completion_tokens=completion,
            outcome="completed",
            finish_reason="stop",
        )
        assert settled == self.books.settle(request_id, prompt, cached, completion)

    async def _void(self, request_id: UUID) -> None:
        assert await void(self.pool, request_id) == self.books.settle(request_id, 0, 0, 0)

    async def _checkpoint(self, request_id: UUID, emitted: int, cached: int) -> None:
        stopped = await checkpoint(self.pool, {request_id: emitted}, cached={request_id: cached}, now=self.clock)
        assert (request_id not in stopped) == self.books.checkpoint(request_id, emitted, cached, self.clock)

    def limit(self, who: str, name: str, value: int | None) -> None:
        limits = self.books.subjects[who].limits
        limits.pop(name, None)
        if value is not None:
            limits[name] = value
        setattr(self.rows[who], name, value)
        self.rows[who].save(update_fields=[name])

    def check(self) -> None:
        """Accounts equal the model, and equal what ledger and running requests add up to."""
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT a.subject, a.day_tokens, a.month_tokens, a.month_cost, a.held_tokens, a.held_cost,"
                " a.settled_count, a.settled_tokens, a.settled_cost, d.*, a.day FROM tenants_account a"
                " CROSS JOIN LATERAL tenants_derived(a.tenant_id, a.subject, a.day, a.month) d"
                " WHERE a.tenant_id = %s",
                [self.tenant.pk],
            )
            rows = cursor.fetchall()
        assert rows or not self.ids
        for subject, *values in rows:
            account, derived, day = values[:8], values[8:16], values[16]
            assert account == derived, subject
            bound = self.books.subjects[self.names[subject]]
            then = datetime(day.year, day.month, day.day, tzinfo=UTC)
            assert tuple(account) == (*self.books.used(bound, then), *self.books.sums(bound)), subject


@pytest.mark.slow
@pytest.mark.usefixtures("grant_keys")
def test_the_books_balance_at_every_step(world: Any, new_id: Any) -> None:
    world.base.context_length = CONTEXT
    world.base.save()
    world.price(*PRICE)
    counter = iter(range(10**9))

    with asyncio.Runner() as runner:
        pool = open_pool(min_size=1, max_size=1)
        runner.run(pool.open())

        @settings(max_examples=200, deadline=None)
        @given(limits=st.lists(ONE_LIMIT, max_size=4), steps=st.lists(STEP, min_size=10, max_size=40))
        def check(limits: list[Any], steps: list[Any]) -> None:
            life = Life(pool, world, new_id, f"t{next(counter)}")
            for one in limits:
                life.limit(*one)
            for what, *values in steps:
                if what == "limit":
                    life.limit(*values[0])
                else:
                    runner.run(life.step(what, *values))
                    life.check()
            life.clock += timedelta(days=1)
            runner.run(life.step("reap"))
            life.check()
            found = reconcile(life.tenant)
            assert found.ok, found.findings
            assert (found.entries, found.running) == (len(life.ids), 0)

        try:
            check()
        finally:
            runner.run(pool.close())
