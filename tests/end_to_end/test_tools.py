"""Tools through openai-python, the gateway and a real worker whose model was never taught to call any."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import openai
import pytest
from openai import AsyncOpenAI

from tests.end_to_end.conftest import RealHouse
from tests.gateway.house import Actor, Process

pytestmark = pytest.mark.slow

PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 20},
        "unit": {"$ref": "#/$defs/unit"},
    },
    "required": ["city", "unit"],
    "additionalProperties": False,
    "$defs": {"unit": {"enum": ["celsius", "fahrenheit"]}},
}
TOOLS: Any = [
    {"type": "function", "function": {"name": "get_weather", "description": "The weather.", "parameters": PARAMETERS}},
    {"type": "function", "function": {"name": "get_time", "description": "The time of day."}},
]
QUESTION: Any = [{"role": "user", "content": "What is the weather like in Paris, in celsius?"}]


def client_of(gateway: Process, actor: Actor) -> AsyncOpenAI:
    return AsyncOpenAI(api_key=actor.secret, base_url=f"{gateway.url}/v1", max_retries=0, timeout=120)


async def test_a_named_call_whole_and_streamed(gateway: Process, house: RealHouse, acme: Actor) -> None:
    fields: Any = {
        "model": house.base.name,
        "messages": QUESTION,
        "tools": TOOLS,
        "tool_choice": {"type": "function", "function": {"name": "get_weather"}},
        "temperature": 0,
        "max_tokens": 60,
    }
    async with client_of(gateway, acme) as client:
        answer = await client.chat.completions.create(**fields)
        (choice,) = answer.choices
        assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
        assert choice.message.tool_calls is not None
        (call,) = choice.message.tool_calls
        assert call.type == "function"
        assert call.function.name == "get_weather"
        arguments = json.loads(call.function.arguments)
        jsonschema.validate(arguments, PARAMETERS)
        assert "Paris" in arguments["city"]
        streamed, name, ends = "", None, []
        async for chunk in await client.chat.completions.create(**fields, stream=True):
            for part in chunk.choices[0].delta.tool_calls or []:
                assert part.index == 0
                assert part.function is not None
                name = part.function.name or name
                streamed += part.function.arguments or ""
            ends.append(chunk.choices[0].finish_reason)
        assert (name, streamed, ends[-1]) == ("get_weather", call.function.arguments, "tool_calls")
        # The conversation goes on with the call and its result.
        messages = [
            *QUESTION,
            choice.message.model_dump(exclude_none=True),
            {"role": "tool", "tool_call_id": call.id, "content": "21 degrees and sunny"},
        ]
        last = await client.chat.completions.create(model=house.base.name, messages=messages, max_tokens=40)
        assert last.choices[0].message.content


async def test_one_of_several_has_to_be_called(gateway: Process, house: RealHouse, acme: Actor) -> None:
    async with client_of(gateway, acme) as client:
        answer = await client.chat.completions.create(
            model=house.base.name, messages=QUESTION, tools=TOOLS, tool_choice="required", n=2, seed=1, max_tokens=80
        )
        for choice in answer.choices:
            assert choice.message.tool_calls is not None
            (call,) = choice.message.tool_calls
            assert call.type == "function"
            assert call.function.name in ("get_weather", "get_time")
            json.loads(call.function.arguments)
            assert choice.finish_reason == "tool_calls"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": "sometimes"}, "tool_choice"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"response_format": {"type": "json_object"}}, "tools"),
        (
            {
                "tools": [{"type": "function", "function": {"name": "a", "parameters": {"not": {}}}}],
                "tool_choice": {"type": "function", "function": {"name": "a"}},
            },
            "tools[0].function.parameters",
        ),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0]"),
    ],
)
async def test_what_is_refused_is_named(
    gateway: Process, house: RealHouse, acme: Actor, fields: dict[str, Any], param: str
) -> None:
    body: Any = {"model": house.base.name, "messages": QUESTION, "tools": TOOLS, **fields}
    async with client_of(gateway, acme) as client:
        with pytest.raises(openai.BadRequestError) as caught:
            await client.chat.completions.create(**body)
    assert caught.value.param == param
