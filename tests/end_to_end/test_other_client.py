"""A client that shares no code with openai-python: huggingface_hub's, with its own HTTP, event reader and types."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from huggingface_hub import AsyncInferenceClient, InferenceClient
from huggingface_hub.errors import HfHubHTTPError, InferenceTimeoutError

from tests.end_to_end.conftest import RealHouse
from tests.gateway.house import Actor, Process

pytestmark = pytest.mark.slow

QUESTION: Any = [{"role": "user", "content": "What is the capital of France?"}]
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOL: Any = {"type": "function", "function": {"name": "look_up", "description": "A city.", "parameters": PARAMETERS}}


def client_of(gateway: Process, actor: Actor) -> AsyncInferenceClient:
    return AsyncInferenceClient(provider="openai", base_url=f"{gateway.url}/v1", api_key=actor.secret, timeout=120)


async def test_whole_and_streamed(gateway: Process, house: RealHouse, acme: Actor) -> None:
    fields: dict[str, Any] = {"model": house.base.name, "temperature": 0, "max_tokens": 20, "seed": 1}
    async with client_of(gateway, acme) as client:
        whole = await client.chat_completion(QUESTION, **fields, logprobs=True, top_logprobs=2)
        (choice,) = whole.choices
        assert choice.message.role == "assistant"
        assert choice.logprobs is not None
        assert "".join(entry.token for entry in choice.logprobs.content) == choice.message.content
        stream = await client.chat_completion(QUESTION, **fields, stream=True, stream_options={"include_usage": True})
        chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == choice.message.content
    assert chunks[-1].usage == whole.usage or chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert chunks[-2].choices[0].finish_reason == choice.finish_reason


def test_synchronously(gateway: Process, house: RealHouse, acme: Actor) -> None:
    client = InferenceClient(provider="openai", base_url=f"{gateway.url}/v1", api_key=acme.secret, timeout=120)
    answer = client.chat_completion(QUESTION, model=house.base.name, temperature=0, max_tokens=10)
    assert "Paris" in (answer.choices[0].message.content or "")
    stream = client.chat.completions.create(QUESTION, model=house.base.name, temperature=0, max_tokens=10, stream=True)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert text == answer.choices[0].message.content


async def test_a_forced_call(gateway: Process, house: RealHouse, acme: Actor) -> None:
    fields: Any = {"model": house.base.name, "tools": [TOOL], "tool_choice": "required", "max_tokens": 40}
    async with client_of(gateway, acme) as client:
        answer = await client.chat_completion(QUESTION, **fields, temperature=0)
        (call,) = answer.choices[0].message.tool_calls or ()
        assert call.function.name == "look_up"
        whole = call.function.arguments
        assert (json.loads(whole) if isinstance(whole, str) else whole)["city"] in {"Paris", "Rome"}
        streamed = ""
        async for chunk in await client.chat_completion(QUESTION, **fields, temperature=0, stream=True):
            for part in chunk.choices[0].delta.tool_calls or ():
                streamed += part.function.arguments or ""
        assert json.loads(streamed)["city"] in {"Paris", "Rome"}


async def test_a_schema(gateway: Process, house: RealHouse, acme: Actor) -> None:
    """By vLLM's field: the library's own ``response_format`` is rewritten for TGI before it is sent."""
    form = {"structured_outputs": {"json": PARAMETERS}}
    async with client_of(gateway, acme) as client:
        answer = await client.chat_completion(
            QUESTION, model=house.base.name, extra_body=form, temperature=0, max_tokens=40
        )
    assert json.loads(answer.choices[0].message.content or "")["city"] in {"Paris", "Rome"}


async def test_errors(gateway: Process, house: RealHouse, acme: Actor) -> None:
    async with client_of(gateway, acme) as client:
        with pytest.raises(HfHubHTTPError) as missing:
            await client.chat_completion(QUESTION, model="nobody/nothing")
        assert missing.value.response.status_code == 404
        with pytest.raises(HfHubHTTPError) as wrong:
            await client.chat_completion(QUESTION, model=house.base.name, temperature=5)
        assert wrong.value.response.json()["error"]["param"] == "temperature"
    impatient = AsyncInferenceClient(provider="openai", base_url=f"{gateway.url}/v1", api_key=acme.secret, timeout=0.3)
    async with impatient:
        with pytest.raises((InferenceTimeoutError, asyncio.TimeoutError)):
            await impatient.chat_completion(
                QUESTION, model=house.base.name, max_tokens=400, extra_body={"ignore_eos": True}
            )
    assert house.one_row(acme).outcome == "cancelled"
