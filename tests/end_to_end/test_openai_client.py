"""openai-python, unmodified, against the gateway with a real worker and real adapters."""

from __future__ import annotations

import asyncio

import openai
import pytest
from openai import AsyncOpenAI

from tests.conftest import WorkerProcess
from tests.end_to_end.conftest import RealHouse
from tests.gateway.house import Actor, Process

pytestmark = pytest.mark.slow

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


def client_of(gateway: Process, actor: Actor) -> AsyncOpenAI:
    return AsyncOpenAI(api_key=actor.secret, base_url=f"{gateway.url}/v1", max_retries=0, timeout=120)


async def test_create(gateway: Process, house: RealHouse, acme: Actor) -> None:
    async with client_of(gateway, acme) as client:
        answer = await client.chat.completions.create(
            model=house.base.name, messages=QUESTION, temperature=0, max_tokens=12
        )
        assert "Paris" in (answer.choices[0].message.content or "")
        assert answer.usage is not None
        assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
        text = await client.completions.create(
            model=house.base.name, prompt="The capital of France is", temperature=0, max_tokens=4
        )
        assert "Paris" in text.choices[0].text


async def test_create_stream_equals_create(gateway: Process, house: RealHouse, acme: Actor) -> None:
    pirate = house.add(acme, "pirate")
    async with client_of(gateway, acme) as client:
        fields = {"model": pirate, "messages": QUESTION, "temperature": 0, "max_tokens": 24}
        whole = (await client.chat.completions.create(**fields)).choices[0]
        stream = await client.chat.completions.create(**fields, stream=True, stream_options={"include_usage": True})
        chunks = [chunk async for chunk in stream]
        pieces = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
        assert "".join(pieces) == whole.message.content
        assert len([piece for piece in pieces if piece]) > 5
        assert chunks[0].choices[0].delta.role == "assistant"
        assert chunks[-1].usage is not None
        assert chunks[-2].choices[0].finish_reason == whole.finish_reason


async def test_stream_helper(gateway: Process, house: RealHouse, acme: Actor) -> None:
    async with (
        client_of(gateway, acme) as client,
        client.chat.completions.stream(
            model=house.base.name, messages=QUESTION, temperature=0, max_tokens=12
        ) as stream,
    ):
        kinds = [event.type async for event in stream]
        final = await stream.get_final_completion()
    assert "content.delta" in kinds
    assert kinds[-1] == "content.done" or "content.done" in kinds
    assert "Paris" in (final.choices[0].message.content or "")


async def test_two_tenants_two_adapters_at_once(gateway: Process, house: RealHouse, acme: Actor, globex: Actor) -> None:
    """Each tenant gets its own adapter's voice out of one batch, the same as alone, and not the other's."""
    pirate, letter = house.add(acme, "pirate"), house.add(globex, "letter")
    callers = [(acme, pirate), (globex, letter), (acme, house.base.name)]

    async def ask(actor: Actor, model: str) -> str:
        async with client_of(gateway, actor) as client:
            answer = await client.chat.completions.create(model=model, messages=QUESTION, temperature=0, max_tokens=24)
            return answer.choices[0].message.content or ""

    alone = [await ask(*caller) for caller in callers]
    together = await asyncio.gather(*(ask(*caller) for caller in callers * 3))
    assert together == alone * 3
    assert len(set(alone)) == 3
    with pytest.raises(openai.NotFoundError):
        await ask(globex, pirate)


async def test_errors_are_the_clients_own_classes(gateway: Process, house: RealHouse, acme: Actor) -> None:
    limited = house.actor("limited", requests_per_minute=1)
    async with client_of(gateway, acme) as client:
        with pytest.raises(openai.NotFoundError) as missing:
            await client.chat.completions.create(model="nobody/nothing", messages=QUESTION)
        assert missing.value.code == "model_not_found"
        with pytest.raises(openai.BadRequestError) as wrong:
            await client.chat.completions.create(model=house.base.name, messages=QUESTION, n=17)
        assert wrong.value.param == "n"
        assert [model.id async for model in client.models.list()] == [house.base.name]
        assert (await client.models.retrieve(house.base.name)).id == house.base.name
    async with client_of(gateway, limited) as client:
        await client.chat.completions.create(model=house.base.name, messages=QUESTION, max_tokens=1)
        with pytest.raises(openai.RateLimitError):
            await client.chat.completions.create(model=house.base.name, messages=QUESTION, max_tokens=1)
    async with AsyncOpenAI(api_key="lpx_live_x_y", base_url=f"{gateway.url}/v1", max_retries=0) as client:
        with pytest.raises(openai.AuthenticationError):
            await client.models.list()


async def test_closing_a_stream_stops_the_worker(
    gateway: Process, house: RealHouse, acme: Actor, worker: WorkerProcess
) -> None:
    async with client_of(gateway, acme) as client:
        stream = await client.chat.completions.create(
            model=house.base.name, messages=QUESTION, max_tokens=400, stream=True, extra_body={"ignore_eos": True}
        )
        seen = 0
        async for _ in stream:
            seen += 1
            if seen == 5:
                break
        await stream.close()
    row = house.one_row(acme)
    assert row.outcome == "cancelled"
    assert 3 <= row.completion_tokens < 200
