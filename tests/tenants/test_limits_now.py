"""A look at the limits says what an admission would, and takes nothing."""

from __future__ import annotations

from typing import Any

import pytest
from asgiref.sync import sync_to_async

from tenants.db import Pool
from tenants.limit_state import LimitState
from tenants.models import InferenceRequest
from tenants.standing import limits_now

pytestmark = pytest.mark.usefixtures("orm_thread")


async def test_a_look_agrees_with_the_admission_before_it(world: Any, admitted: Any, db_pool: Pool) -> None:
    actor = await sync_to_async(world.actor)(
        "acme",
        tokens_per_minute=6_000,
        requests_per_minute=60,
        max_concurrent=9,
        key_limits={"requests_per_minute": 30, "max_concurrent": 3},
        member_limits={"tokens_per_minute": 3_000},
    )
    whose = (actor.tenant.pk, actor.key.member_id, actor.key.pk)
    before = await limits_now(db_pool, *whose)
    assert (before.limit_requests, before.remaining_requests, before.reset_requests_seconds) == (30, 30, 0)
    assert (before.limit_tokens, before.remaining_tokens) == (3_000, 3_000)
    await admitted(actor, max_tokens=100)
    for _ in range(3):
        found = await limits_now(db_pool, *whose)
    assert (found.limit_requests, found.remaining_requests) == (30, 29)
    assert found.reset_requests_seconds == pytest.approx(2, abs=1)
    assert found.limit_tokens == 3_000
    assert found.remaining_tokens == pytest.approx(2_800, abs=50)  # refilled since, at 50 a second
    assert (found.limit_concurrent, found.remaining_concurrent) == (3, 2)
    assert await sync_to_async(InferenceRequest.objects.filter(tenant=actor.tenant).count)() == 1


def _row(**values: Any) -> dict[str, Any]:
    names = ("requests_per_minute", "requests_units", "tokens_per_minute", "tokens_units", "max_concurrent", "running")
    return dict.fromkeys(names) | {"budget_soft": None, "month_cost": 0} | values


def test_the_edges() -> None:
    none = LimitState.of_standing([_row()])
    assert none == LimitState(None, None, None, None, None, None, None, None, over_soft_budget=False)
    shut = LimitState.of_standing([_row(requests_per_minute=0, requests_units=0)])
    assert (shut.limit_requests, shut.remaining_requests, shut.reset_requests_seconds) == (0, 0, None)
    overdrawn = LimitState.of_standing([_row(tokens_per_minute=60, tokens_units=-60_000_000)])
    assert (overdrawn.remaining_tokens, overdrawn.reset_tokens_seconds) == (0, 61)
    crowded = LimitState.of_standing([_row(max_concurrent=2, running=3), _row(budget_soft=5, month_cost=5)])
    assert (crowded.limit_concurrent, crowded.remaining_concurrent, crowded.over_soft_budget) == (2, 0, True)
