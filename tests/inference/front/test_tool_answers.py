"""Chats with tools over HTTP, of a model that has no idea of them: what is forced still comes out right."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import aiohttp
import jsonschema
import pytest

from tests.inference.front.actors import TinyWorker
from tests.inference.front.answers import CHAT, post
from tests.inference.tiny_model import build_tiny_model

PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 6}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}},
    {"type": "function", "function": {"name": "now"}},
]
BODY: dict[str, Any] = {
    "messages": [{"role": "user", "content": "?"}],
    "tools": TOOLS,
    "max_tokens": 200,
    "temperature": 1.2,
    "seed": 7,
}
IMPOSSIBLE = {"name": "a", "parameters": {"type": "object", "not": {}}}
IN_FIRST = "tools[0].function.parameters"
NAMED = {"type": "function", "function": {"name": "weather"}}


@pytest.fixture(scope="module")
def tiny_worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TinyWorker]:
    """One with room for tools: its tokens are hardly more than letters."""
    folder = tmp_path_factory.mktemp("tools-worker")
    worker = TinyWorker(build_tiny_model(folder / "tiny", max_position_embeddings=1024), folder)
    yield worker
    assert worker.stop() == 0


def _check(call: dict[str, Any]) -> None:
    arguments = json.loads(call["function"]["arguments"])
    if call["function"]["name"] == "weather":
        jsonschema.validate(arguments, PARAMETERS)
    else:
        assert (call["function"]["name"], arguments) == ("now", {})


@pytest.mark.parametrize("choice", ["required", NAMED])
async def test_a_forced_call_whole_and_streamed(
    tiny_worker: TinyWorker, session: aiohttp.ClientSession, choice: Any
) -> None:
    body = {**BODY, "tool_choice": choice}
    status, answer = await post(session, tiny_worker, CHAT, body, max_input=900)
    assert status == 200, answer
    (only,) = answer["choices"]
    assert only["finish_reason"] == "tool_calls"
    assert only["message"]["content"] is None
    (call,) = only["message"]["tool_calls"]
    assert call["id"].startswith("call_")
    assert call["type"] == "function"
    _check(call)
    _, events = await post(session, tiny_worker, CHAT, {**body, "stream": True}, max_input=900)
    parts = [part for event in events for c in event["choices"] for part in c["delta"].get("tool_calls", [])]
    assert [part["function"]["name"] for part in parts if "id" in part] == [call["function"]["name"]]
    assert {part["index"] for part in parts} == {0}
    assert "".join(part["function"]["arguments"] for part in parts) == call["function"]["arguments"]
    assert len(parts) > 2, "arguments come as they are written"
    assert events[-1]["choices"][0]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("choice", ["required", NAMED])
async def test_stops_do_not_cut_a_forced_call(
    tiny_worker: TinyWorker, session: aiohttp.ClientSession, choice: Any
) -> None:
    """Not even those that every call contains."""
    body = {**BODY, "tool_choice": choice, "stop": ['"', "{", "}", ":"], "stop_token_ids": list(range(10, 200))}
    status, answer = await post(session, tiny_worker, CHAT, body, max_input=900)
    assert status == 200, answer
    (only,) = answer["choices"]
    assert only["finish_reason"] == "tool_calls"
    _check(only["message"]["tool_calls"][0])


@pytest.mark.parametrize("most", [1, 3, 6])
async def test_a_forced_call_cut_in_its_head_is_no_text(
    tiny_worker: TinyWorker, session: aiohttp.ClientSession, most: int
) -> None:
    """The prompt ended with the call's beginning; that is nothing the model said."""
    body = {**BODY, "tool_choice": "required", "max_tokens": most}
    _, answer = await post(session, tiny_worker, CHAT, body, max_input=900)
    (only,) = answer["choices"]
    assert (only["finish_reason"], only["message"]["content"]) == ("length", None)
    assert "tool_calls" not in only["message"]
    _, events = await post(session, tiny_worker, CHAT, {**body, "stream": True}, max_input=900)
    deltas = [choice["delta"] for event in events for choice in event["choices"]]
    assert not any(delta.get("content") or delta.get("tool_calls") for delta in deltas)


async def test_choices_call_each_for_itself(tiny_worker: TinyWorker, session: aiohttp.ClientSession) -> None:
    body = {**BODY, "tool_choice": "required", "n": 3}
    _, answer = await post(session, tiny_worker, CHAT, body, max_input=900, max_output=600)
    for choice in answer["choices"]:
        (call,) = choice["message"]["tool_calls"]
        _check(call)


async def test_a_free_choice_may_be_text(tiny_worker: TinyWorker, session: aiohttp.ClientSession) -> None:
    _, answer = await post(session, tiny_worker, CHAT, {**BODY, "max_tokens": 8}, max_input=900)
    (choice,) = answer["choices"]
    assert choice["finish_reason"] in ("length", "stop")
    assert "tool_calls" not in choice["message"]
    assert choice["message"]["content"]


async def test_history_with_calls(tiny_worker: TinyWorker, session: aiohttp.ClientSession) -> None:
    called = {"id": "c", "type": "function", "function": {"name": "now", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "?"},
        {"role": "assistant", "content": None, "tool_calls": [called]},
        {"role": "tool", "tool_call_id": "c", "content": "noon"},
    ]
    status, answer = await post(session, tiny_worker, CHAT, {"messages": messages, "max_tokens": 4})
    assert status == 200, answer


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": "maybe"}, "tool_choice"),
        ({"tools": [{"type": "function", "function": IMPOSSIBLE}], "tool_choice": "required"}, IN_FIRST),
        ({"response_format": {"type": "json_object"}}, "tools"),
        ({"tools": [{}]}, "tools[0]"),
        ({"functions": []}, "functions"),
    ],
)  # fmt: skip
async def test_what_is_refused(
    tiny_worker: TinyWorker, session: aiohttp.ClientSession, fields: dict[str, Any], param: str
) -> None:
    status, answer = await post(session, tiny_worker, CHAT, {**BODY, **fields}, max_input=900)
    assert (status, answer["error"]["param"]) == (400, param), answer
