"""What strict clients rely on, point by point, through openai-python and by the bytes; the worker only counts."""

from __future__ import annotations

import asyncio
import re
import time
from typing import Any

import aiohttp
import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from tests.gateway.house import Actor, House, Process
from tests.gateway.stub_worker import AT_FAULT, BREAK_OFF, BUSY, ERROR_EVENT, OVERTAKEN
from tests.gateway.test_completions import CHAT, body, events

MESSAGES: Any = [{"role": "user", "content": "hi"}]
DURATION = re.compile(r"\d+ms|\d+(\.\d+)?s|\d+m\d+s")


def client_of(gateway: Process, actor: Actor, **options: Any) -> AsyncOpenAI:
    return AsyncOpenAI(**{"api_key": actor.secret, "base_url": f"{gateway.url}/v1", "max_retries": 0} | options)


async def test_headers(gateway: Process, house: House) -> None:
    actor = house.actor("metered", requests_per_minute=3, tokens_per_minute=100_000)
    async with client_of(gateway, actor) as client:
        for stream in (False, True):
            raw = await client.chat.completions.with_raw_response.create(
                model=house.base.name, messages=MESSAGES, max_tokens=3, stream=stream
            )
            assert raw.headers["x-request-id"]
            assert int(raw.headers["openai-processing-ms"]) > 0
            for what in ("requests", "tokens"):
                assert int(raw.headers[f"x-ratelimit-remaining-{what}"]) < int(raw.headers[f"x-ratelimit-limit-{what}"])
                assert DURATION.fullmatch(raw.headers[f"x-ratelimit-reset-{what}"])
            await raw.http_response.aread()
        answer = await client.chat.completions.create(model=house.base.name, messages=MESSAGES, max_tokens=3)
        assert answer._request_id
        with pytest.raises(openai.RateLimitError) as refusal:
            await client.chat.completions.create(model=house.base.name, messages=MESSAGES, max_tokens=3)
        assert refusal.value.request_id
        headers = refusal.value.response.headers
        assert abs(int(headers["retry-after-ms"]) / 1000 - int(headers["retry-after"])) < 1


@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
async def test_choices_appear_in_order(gateway: Process, house: House, acme: Actor, path: str) -> None:
    """Clients append a choice they have not seen, whatever its index says."""
    fields = body(house, n=3, seed=OVERTAKEN, stream=True)
    if path != CHAT:
        del fields["messages"]
        fields["prompt"] = "hi"
    chunks = await events(gateway, path, acme, fields)
    seen = [chunk["choices"][0]["index"] for chunk in chunks[:-1]]
    assert list(dict.fromkeys(seen)) == [0, 1, 2]
    for index in range(3):
        mine = [chunk["choices"][0] for chunk in chunks[:-1] if chunk["choices"][0]["index"] == index]
        texts = [choice["delta"].get("content", "") if path == CHAT else choice["text"] for choice in mine]
        assert "".join(texts) == " 0 1 2 3 4"
        if path == CHAT:
            assert [choice["delta"].get("role") for choice in mine] == ["assistant"] + [None] * (len(mine) - 1)
        assert [choice["finish_reason"] for choice in mine] == [None] * (len(mine) - 1) + ["stop"]


async def test_the_helper_puts_choices_together(gateway: Process, house: House, acme: Actor) -> None:
    async with client_of(gateway, acme) as client:
        fields: Any = {"model": house.base.name, "messages": MESSAGES, "max_tokens": 4, "n": 3, "seed": OVERTAKEN}
        async with client.chat.completions.stream(**fields, stream_options={"include_usage": True}) as stream:
            kinds = {event.type async for event in stream}
            final = await stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done"} <= kinds
    assert [(choice.index, choice.message.content) for choice in final.choices] == [(n, " 0 1 2 3") for n in range(3)]
    assert final.usage is not None
    assert final.usage.completion_tokens == 12


@pytest.mark.parametrize(("way", "code"), [(ERROR_EVENT, "worker_lost"), (BREAK_OFF, "worker_lost"), (AT_FAULT, None)])
async def test_failures_in_mid_stream_are_raised(
    gateway: Process, house: House, acme: Actor, way: int, code: str | None
) -> None:
    async with client_of(gateway, acme) as client:
        stream = await client.chat.completions.create(
            model=house.base.name, messages=MESSAGES, max_tokens=9, seed=way, stream=True
        )
        with pytest.raises(openai.APIError) as failure:
            async for _ in stream:
                pass
    assert failure.value.code == (code or "invalid_value")


async def test_a_client_tries_again_where_that_helps_and_only_there(
    gateway: Process, house: House, acme: Actor
) -> None:
    async with client_of(gateway, acme, max_retries=1) as client:
        with pytest.raises(openai.InternalServerError) as busy:
            await client.chat.completions.create(model=house.base.name, messages=MESSAGES, max_tokens=3, seed=BUSY)
        assert busy.value.status_code == 503
        assert len(house.ledger(acme)) == 2
    poor = house.actor("poor", tokens_per_month=20)
    async with client_of(gateway, poor, max_retries=3) as client:
        started = time.monotonic()
        with pytest.raises(openai.RateLimitError) as quota:
            await client.chat.completions.create(model=house.base.name, messages=MESSAGES, max_tokens=400)
        assert (quota.value.code, time.monotonic() - started < 0.4) == ("insufficient_quota", True)


def test_the_synchronous_client(gateway: Process, house: House, acme: Actor) -> None:
    with OpenAI(api_key=acme.secret, base_url=f"{gateway.url}/v1", max_retries=0) as client:
        whole = client.chat.completions.create(model=house.base.name, messages=MESSAGES, max_completion_tokens=4)
        assert whole.choices[0].message.content == " 0 1 2 3"
        with client.chat.completions.with_streaming_response.create(
            model=house.base.name, messages=MESSAGES, max_tokens=4, stream=True
        ) as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            assert list(response.iter_lines())[-2] == "data: [DONE]"
        stream = client.completions.create(model=house.base.name, prompt="hi", max_tokens=4, stream=True)
        assert "".join(chunk.choices[0].text for chunk in stream) == " 0 1 2 3"
        with pytest.raises(openai.BadRequestError) as refused:
            client.chat.completions.create(model=house.base.name, messages=MESSAGES, service_tier="flex")
        assert refused.value.param == "service_tier"
        with pytest.raises(openai.NotFoundError):
            client.embeddings.create(model=house.base.name, input="hi")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("HEAD", "/v1/models", 200),
        ("HEAD", "/health", 200),
        ("HEAD", CHAT, 405),
        ("HEAD", "/v1/nothing", 404),
        ("OPTIONS", CHAT, 405),
        ("OPTIONS", "/v1/models", 405),
    ],
)
async def test_head_and_options(gateway: Process, acme: Actor, method: str, path: str, status: int) -> None:
    """No answer invites a page of another origin: keys do not belong into pages."""
    headers = {**acme.headers, "Origin": "https://elsewhere.example", "Access-Control-Request-Method": "POST"}
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, gateway.url + path, headers=headers) as answer,
    ):
        assert answer.status == status
        assert not [name for name in answer.headers if name.lower().startswith("access-control")]
        data = await answer.read()
        assert answer.headers["content-type"].startswith("application/json")
        if method == "HEAD":
            assert data == b""
        else:
            assert b'"method_not_allowed"' in data
            assert answer.headers["allow"]


async def test_many_clients_share_one_connection_pool(gateway: Process, house: House, acme: Actor) -> None:
    async with client_of(gateway, acme) as client:
        answers = await asyncio.gather(
            *(client.chat.completions.create(model=house.base.name, messages=MESSAGES, max_tokens=2) for _ in range(20))
        )
    assert len({answer.id for answer in answers}) == 20
