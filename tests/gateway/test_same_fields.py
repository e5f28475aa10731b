"""The gateway and the worker behind it say the same about every field: what one lets through, the other takes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.errors import ApiError
from gateway.parsing import parse, parse_json
from gateway.schemas import ChatRequest, CompletionRequest
from inference.front.bodies import generate_body
from inference.front.errors import ApiError as WorkerError
from inference.request_fields import COUNTS, SAMPLING

NOW = {"type": "function", "function": {"name": "now"}}
ODD: list[Any] = [
    *(None, True, False, "", "x", "1", [], ["x"], [1], {}, {"1": 1}, {"x": 1}, -3, -2, -1, 0, 1, 2, 3, 10, 11, 16),
    *(17, 20, 21, 0.5, 1.0, 1.5, 2.0, 2.5, 9.5, 10.5, -0.5, -2.5),
    *(1 << 20, 1 << 30, (1 << 30) + 1, (1 << 31) - 1, 1 << 31),
    *((1 << 63) - 1, 1 << 63, -(1 << 63), -(1 << 63) - 1, 1 << 64, 1 << 70),
]  # fmt: skip
VALUES: dict[str, list[Any]] = {
    "stop": [["x"] * 5, ["x"] * 16, ["x"] * 17, "x" * 1000, "x" * 1001, [""], [1]],
    "stop_token_ids": [[0, 5], [-1], [1.0], [True], list(range(1024)), list(range(1025))],
    "logit_bias": [
        {"1": 100},
        {"1": 101},
        {"1": True},
        {"-1": 1},
        {"01": 5},
        {"0": 5},
        {"00": 5},
        {str(n): 1 for n in range(1024)},
    ],
    "prompt": [["a"], ["a", "b"], [[1, 2]], [[1], [2]], [-1], [1.5], [None], [1 << 40], [1, "a"]],
    "stream_options": [{"include_usage": True}, {"include_obfuscation": False}],
    "response_format": [
        {"type": "json_object"},
        {"type": "json_object", "x": 1},
        {"type": "json_schema", "json_schema": {"name": "a b", "schema": {}}},
        {"type": "json_schema", "json_schema": {"name": "a" * 65, "schema": {}}},
        {"type": "json_schema", "json_schema": {"name": "a-b_1", "schema": {}}},
    ],
    "structured_outputs": [{"foo": 1}, {"regex": "a"}, {"regex": ""}, {"json": {}, "regex": "a"}],
    "tools": [[NOW], [NOW, NOW], [{**NOW, "x": 1}], [{"type": "function", "function": {"name": "f", "x": 1}}]],
    "tool_choice": ["auto", "required", "none", NOW],
}
SHARED = [*SAMPLING, "max_tokens", "n", "prompt_logprobs", "stream", "response_format", "structured_outputs"]
CHAT = [*SHARED, *COUNTS, "logprobs", "tools", "tool_choice", "parallel_tool_calls", "guided_json", "best_of", "echo"]
COMPLETION = [*SHARED, "logprobs", "best_of", "echo", "prompt", "suffix", "top_logprobs", "tools"]
TOGETHER: list[dict[str, Any]] = [
    {"stream_options": {"include_usage": True}},
    {"stream_options": {"include_usage": True}, "stream": False},
    {"stream_options": {"include_usage": True}, "stream": True},
    {"stream_options": {"include_usage": None}, "stream": True},
    {"stream_options": {"include_obfuscation": False}, "stream": True},
    {"stream_options": {"x": 1}, "stream": True},
    {"stream": True, "prompt_logprobs": 1},
    {"max_tokens": 0, "echo": True},
    {"max_tokens": 0, "prompt_logprobs": 0},
    {"max_tokens": 1, "max_completion_tokens": 2},
    {"n": 3, "best_of": 3},
    {"n": 3, "best_of": 2},
    {"n": 3, "best_of": None},
    {"logprobs": True, "top_logprobs": 5},
    {"logprobs": False, "top_logprobs": 5},
    {"tools": [NOW], "tool_choice": "required"},
    {"tools": [NOW], "response_format": {"type": "json_object"}},
    {"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}},
]


def _verdicts(body: dict[str, Any], *, chat: bool) -> tuple[Any, Any]:
    """Of the gateway and of the worker: ``None``, or the field at fault and the code."""
    raw = json.dumps(body)
    found: list[Any] = []
    message = ""
    try:
        parse(ChatRequest if chat else CompletionRequest, parse_json(raw))
        found.append(None)
    except ApiError as error:
        found.append((error.status, error.param, error.code))
        message = error.message
    assert not message or message.count(f"{found[0][1]}: ") <= 1, message
    try:
        generate_body(raw.encode(), chat=chat)
        found.append(None)
    except WorkerError as error:
        found.append((error.status, error.param, error.code))
    return found[0], found[1]


def _body(fields: dict[str, Any], *, chat: bool) -> dict[str, Any]:
    start: dict[str, Any] = {"messages": [{"role": "user", "content": "x"}]} if chat else {"prompt": "x"}
    return {"model": "m", **start, **fields}


@pytest.mark.parametrize("chat", [True, False], ids=["chat", "completion"])
def test_each_field(chat: bool) -> None:
    for name in CHAT if chat else COMPLETION:
        for value in [*ODD, *VALUES.get(name, [])]:
            gateway, worker = _verdicts(_body({name: value}, chat=chat), chat=chat)
            assert gateway == worker, (name, str(value)[:80])


@pytest.mark.parametrize("fields", TOGETHER)
@pytest.mark.parametrize("chat", [True, False], ids=["chat", "completion"])
def test_fields_together(fields: dict[str, Any], chat: bool) -> None:
    gateway, worker = _verdicts(_body(fields, chat=chat), chat=chat)
    assert gateway == worker


def test_messages_tell_the_range() -> None:
    with pytest.raises(ApiError, match=r"seed must be an integer between -2\*\*63 and 2\*\*63 - 1"):
        parse(ChatRequest, parse_json(json.dumps(_body({"seed": 1 << 64}, chat=True))))
    with pytest.raises(ApiError, match="token ids are integers of at least 0, unlike -1"):
        parse(CompletionRequest, _body({"prompt": [-1]}, chat=False))
    with pytest.raises(ApiError, match=r"^Unknown field structured_outputs.foo\.$"):
        parse(ChatRequest, _body({"structured_outputs": {"foo": 1}}, chat=True))


def test_what_keeps_every_token() -> None:
    for value in (-1, 0):
        assert parse(ChatRequest, _body({"top_k": value}, chat=True)).sampling()["top_k"] == 0
        assert generate_body(json.dumps(_body({"top_k": value}, chat=True)).encode(), chat=True).sampling["top_k"] == 0
