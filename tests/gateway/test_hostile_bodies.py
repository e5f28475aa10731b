"""Bodies made to take as much work as their bytes can buy: each is accepted or refused for little, the field named."""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pydantic import ValidationError

from gateway.errors import ApiError
from gateway.parsing import parse, parse_json
from gateway.schemas import ChatRequest, CompletionRequest
from inference.front.bodies import generate_body
from inference.nesting import MAX_TOKEN_IDS, MAX_VALUES

MOST_BYTES = 4 << 20
MOST_ERRORS = 60
"""Of pydantic: about one for each field of a body, however often the fields of its parts are wrong."""

SECONDS = 0.4
"""Of CPU. Measured: 0.1 at most; before, up to 2.2."""

TEXT = {"role": "user", "content": "x"}
CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
WRONG = {"role": "user", "content": "", "name": 1, "refusal": 1, "audio": 1, "annotations": 1}


@pytest.fixture(autouse=True)
def _heap() -> Iterator[None]:
    """Frozen, as a gateway's is: what pytest holds is not looked through meanwhile."""
    gc.freeze()
    yield
    gc.unfreeze()


def _numbered(count: int, value: Any) -> dict[str, Any]:
    return {str(number): value for number in range(count)}


def _schema(schema: dict[str, Any]) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}}


def _tools(properties: dict[str, Any]) -> list[Any]:
    parameters = {"type": "object", "properties": properties}
    return [{"type": "function", "function": {"name": "f", "parameters": parameters}}]


CHATS: dict[str, tuple[Callable[[], dict[str, Any]], str | None]] = {
    "unknown fields": (lambda: _numbered(350_000, 0), "0"),
    "unknown fields of a message": (lambda: {"messages": [TEXT | _numbered(350_000, 0)]}, "messages"),
    "unknown fields of messages": (lambda: {"messages": [WRONG | _numbered(20, 0)] * 2048}, "messages[0].0"),
    "wrong fields of messages": (lambda: {"messages": [WRONG | {"tool_calls": [0] * 20}] * 2048}, "messages[0].name"),
    "too much in messages": (lambda: {"messages": [WRONG | {"tool_calls": [0] * 128}] * 2048}, "messages"),
    "no messages": (lambda: {"messages": [0] * 1_900_000}, "messages"),
    "some more messages": (lambda: {"messages": [TEXT] * 2049}, "messages"),
    "no calls": (
        lambda: {"messages": [{"role": "assistant", "tool_calls": [0] * 28}] * 2048},
        "messages[0].tool_calls[0]",
    ),
    "calls": (lambda: {"messages": [{"role": "assistant", "tool_calls": [CALL] * 4}] * 2048}, None),
    "parts": (lambda: {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}] * 21_000}]}, None),
    "wrong metadata": (lambda: {"metadata": _numbered(65_000, 1)}, "metadata"),
    "metadata": (lambda: {"metadata": _numbered(300_000, "")}, "metadata"),
    "biases": (lambda: {"logit_bias": _numbered(65_000, "x")}, "logit_bias"),
    "stop tokens": (lambda: {"stop_token_ids": [1] * 1_900_000}, "stop_token_ids"),
    "properties": (lambda: _schema({"properties": _numbered(65_000, {})}), "response_format.json_schema.schema"),
    "more properties": (lambda: _schema({"properties": _numbered(300_000, {})}), "response_format"),
    "choices": (lambda: {"structured_outputs": {"choice": ["é" * 8] * 65_000}}, "structured_outputs.choice"),
    "tools": (lambda: {"tools": _tools(_numbered(21_000, {"type": "string", "minLength": 1}))}, None),
    "lists": (lambda: {"user": [[]] * 1_300_000}, "user"),
    "everything": (lambda: {name: [0] * 1000 for name in ChatRequest.model_fields if name != "metadata"}, None),
}  # fmt: skip
COMPLETIONS: dict[str, tuple[Callable[[], Any], str | None]] = {
    "ids": (lambda: [1] * MAX_TOKEN_IDS, None),
    "more ids": (lambda: [1] * 2_000_000, "prompt"),
    "more ids in a list": (lambda: [[1] * 2_000_000], "prompt"),
    "a wrong id at the end": (lambda: [1] * (MAX_TOKEN_IDS - 1) + [-1], "prompt"),
    "a text at the end": (lambda: [1] * (MAX_TOKEN_IDS - 1) + ["x"], "prompt"),
    "objects": (lambda: [{}] * 1_300_000, "prompt"),
}


def _parsed(schema: type[ChatRequest] | type[CompletionRequest], body: dict[str, Any]) -> ApiError | None:
    """What is wrong with it. Fails where finding it is more work than it may be."""
    raw = json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode()
    body.clear()
    assert len(raw) <= MOST_BYTES
    found: ApiError | None = None
    began = time.process_time()
    try:
        parse(schema, parse_json(raw)).sampling()
    except ApiError as error:
        found = error
    assert time.process_time() - began < SECONDS
    if found is not None and isinstance(found.__context__, ValidationError):
        assert found.__context__.error_count() <= MOST_ERRORS
    return found


@pytest.mark.parametrize("name", CHATS)
def test_chats(name: str) -> None:
    make, param = CHATS[name]
    error = _parsed(ChatRequest, {"model": "a", "messages": [TEXT], **make()})
    if name == "everything":
        assert error is not None
        assert error.param == "model"
    else:
        assert (None if error is None else error.param) == param


@pytest.mark.parametrize("name", COMPLETIONS)
def test_completions(name: str) -> None:
    make, param = COMPLETIONS[name]
    error = _parsed(CompletionRequest, {"model": "a", "prompt": make()})
    assert (None if error is None else error.param) == param


def test_the_worker_takes_what_the_gateway_takes_of_them() -> None:
    for name, (make, param) in CHATS.items():
        if param is None and name != "everything":
            raw = json.dumps({"model": "a", "messages": [TEXT], **make()}).encode()
            assert generate_body(raw, chat=True).messages


def test_long_requests_have_room() -> None:
    """2,048 messages, every other one with tool calls; a schema and a prompt as long as they may be."""
    asks = {"role": "assistant", "tool_calls": [CALL, CALL, CALL]}
    turns = [asks if number % 2 else TEXT for number in range(2048)]
    assert len(parse(ChatRequest, {"model": "a", "messages": turns}).messages) == 2048
    names = list(_numbered(14_000, 0))
    assert len(json.dumps(names)) > 110_000
    assert parse(ChatRequest, {"model": "a", "messages": [TEXT], **_schema({"required": names})}).sampling()


def test_the_number_of_values_is_exact() -> None:
    body: dict[str, Any] = {"model": "a", "messages": [TEXT]}  # five values
    room = MAX_VALUES - 5 - 1
    refused = _parsed(ChatRequest, {**body, "functions": [0] * room})
    assert refused is not None
    assert (refused.param, refused.code) == ("functions", "unsupported_parameter")
    refused = _parsed(ChatRequest, {**body, "functions": [0] * (room + 1)})
    assert refused is not None
    assert refused.message == f"functions: the body holds more than {MAX_VALUES} values."


def test_unknown_fields_go_first_wherever_they_are() -> None:
    body: dict[str, Any] = {
        "model": 1,
        "messages": [{"role": "x"}, TEXT | {"colour": 1}],
        "stream_options": {"fast": 1},
    }
    with pytest.raises(ApiError, match=r"argument: stream_options\.fast"):
        parse(ChatRequest, body)
    del body["stream_options"]
    with pytest.raises(ApiError, match=r"argument: messages\[1\].colour"):
        parse(ChatRequest, body)


@pytest.mark.parametrize(
    ("metadata", "param"),
    [
        ({}, None),
        (None, None),
        (_numbered(16, "x" * 512), None),
        ({"k" * 64: ""}, None),
        (_numbered(17, ""), "metadata"),
        ({"k" * 65: ""}, "metadata"),
        ({"": ""}, "metadata"),
        ({"a": "x" * 513}, "metadata.a"),
        ({"a": 1}, "metadata.a"),
        (["a"], "metadata"),
        ("a", "metadata"),
    ],
)
def test_metadata(metadata: Any, param: str | None) -> None:
    """As a batch's: sixteen short texts. Nothing reads a live request's, so nothing of it is kept."""
    body = {"model": "a", "messages": [TEXT], "metadata": metadata}
    if param is None:
        assert parse(ChatRequest, body).metadata is None
        return
    with pytest.raises(ApiError) as refused:
        parse(ChatRequest, body)
    assert (refused.value.status, refused.value.param) == (400, param)
    assert not refused.value.message.endswith("..")
