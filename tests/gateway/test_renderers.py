from __future__ import annotations

import asyncio
from pathlib import Path
from uuid import uuid4

import pytest

from gateway.errors import ApiError
from gateway.renderers import MOST_LARGE_OF_ONE_TENANT, MOST_MEDIUM_OF_ONE_TENANT, Renderers
from gateway.schemas import CompletionRequest
from tenants.access import ServedModel


async def test_long_prompts_of_one_tenant_wait_for_each_other_and_are_few(smollm_dir: Path) -> None:
    model = ServedModel("m", 1, "m", "f", smollm_dir, 8192, None, None, 0)
    request = CompletionRequest(model="m", prompt="a " * 50_000)
    renderers, busy, other = Renderers(), uuid4(), uuid4()
    await renderers.of(model)
    work = [renderers.encode(model, request, busy) for _ in range(12)] + [renderers.encode(model, request, other)]
    *many, of_other = await asyncio.gather(*work, return_exceptions=True)
    refused = [outcome for outcome in many if isinstance(outcome, ApiError)]
    assert len(refused) == 12 - MOST_LARGE_OF_ONE_TENANT
    assert {(error.status, error.code) for error in refused} == {(429, "rate_limit_exceeded")}
    assert isinstance(of_other, list), "another tenant's long prompt takes its turn"
    assert isinstance(await renderers.encode(model, request, busy), list), "turns are given back"


async def test_a_client_that_leaves_keeps_its_turn_until_the_thread_has_ended(smollm_dir: Path) -> None:
    model = ServedModel("m", 1, "m", "f", smollm_dir, 8192, None, None, 0)
    request = CompletionRequest(model="m", prompt="a " * 300_000)  # for long enough, however busy the machine is
    renderers, tenant = Renderers(), uuid4()
    await renderers.of(model)
    left = [asyncio.create_task(renderers.encode(model, request, tenant)) for _ in range(MOST_LARGE_OF_ONE_TENANT)]
    await asyncio.sleep(0)
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    with pytest.raises(ApiError, match="long prompts"):
        await renderers.encode(model, request, tenant)


async def test_a_flood_of_middling_prompts_does_not_hold_up_another_tenant(smollm_dir: Path) -> None:
    model = ServedModel("m", 1, "m", "f", smollm_dir, 8192, None, None, 0)
    request = CompletionRequest(model="m", prompt="a " * 6000)
    renderers, busy, other = Renderers(), uuid4(), uuid4()
    await renderers.of(model)
    flood = [asyncio.create_task(renderers.encode(model, request, busy)) for _ in range(MOST_MEDIUM_OF_ONE_TENANT + 5)]
    await asyncio.sleep(0)
    assert isinstance(await renderers.encode(model, request, other), list)
    assert sum(task.done() for task in flood) < len(flood) // 2
    outcomes = await asyncio.gather(*flood, return_exceptions=True)
    assert sum(isinstance(outcome, ApiError) for outcome in outcomes) == 5
    assert isinstance(await renderers.encode(model, request, busy), list)
