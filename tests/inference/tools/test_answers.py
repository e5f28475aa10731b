"""Answers with calls in OpenAI's shapes: one call where only one is wanted, and nothing that cannot be sent."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from inference.protocol import Delta
from inference.tools.answers import ToolAnswers
from inference.tools.request import tool_use_of
from inference.tools.style import HERMES

NOW = {"type": "function", "function": {"name": "now"}}
FIRST = '<tool_call>\n{"name": "now", "arguments": {"zone": "UTC"}}\n</tool_call>'
SECOND = '<tool_call>\n{"name": "then", "arguments": {}}\n</tool_call>'
CALLED = [("now", '{"zone": "UTC"}')]


def _answers(**fields: Any) -> ToolAnswers:
    use = tool_use_of({"tools": [NOW], **fields})
    assert use is not None
    return ToolAnswers(use, HERMES)


def _whole(text: str, finish_reason: str, **fields: Any) -> tuple[str | None, list[tuple[str, str]], str | None]:
    message, finish = _answers(**fields).whole(Delta(text, finish_reason=finish_reason))
    orjson.dumps(message)
    functions = [call["function"] for call in message.get("tool_calls", [])]
    return message["content"], [(function["name"], function["arguments"]) for function in functions], finish


def _streamed(text: str, finish_reason: str, **fields: Any) -> tuple[str | None, list[tuple[str, str]], str | None]:
    answers, content, finish = _answers(**fields), "", None
    calls: list[tuple[str, str]] = []
    for number, letter in enumerate(text, 1):
        shown, finish = answers.delta(Delta(letter, finish_reason=finish_reason if number == len(text) else None))
        orjson.dumps(shown)
        content += shown.get("content", "")
        for part in shown.get("tool_calls", []):
            if "id" in part:
                calls.append((part["function"]["name"], ""))
            calls[part["index"]] = (calls[part["index"]][0], calls[part["index"]][1] + part["function"]["arguments"])
    return content or None, calls, finish


BOTH = pytest.mark.parametrize("answer", [_whole, _streamed])


@BOTH
@pytest.mark.parametrize(
    ("fields", "text", "ended", "expected"),
    [
        ({}, FIRST + SECOND, "stop", (None, [*CALLED, ("then", "{}")], "tool_calls")),
        ({"parallel_tool_calls": True}, FIRST + SECOND, "stop", (None, [*CALLED, ("then", "{}")], "tool_calls")),
        ({"parallel_tool_calls": False}, FIRST + SECOND, "stop", (None, CALLED, "tool_calls")),
        ({"parallel_tool_calls": False}, "Hm. " + FIRST + "\nSo " + SECOND, "stop", ("Hm. ", CALLED, "tool_calls")),
        ({"parallel_tool_calls": False}, FIRST + SECOND[:25], "length", (None, CALLED, "tool_calls")),
        ({"parallel_tool_calls": False}, FIRST[:48], "length", (None, [("now", '{"zone"')], "length")),
        ({"parallel_tool_calls": False}, "Noon.", "length", ("Noon.", [], "length")),
        ({}, FIRST + SECOND[:43], "length", (None, [*CALLED, ("then", "{")], "length")),
    ],
)
def test_one_call_where_only_one_is_wanted(
    answer: Any, fields: dict[str, Any], text: str, ended: str, expected: tuple[Any, ...]
) -> None:
    assert answer(text, ended, **fields) == expected


@BOTH
@pytest.mark.parametrize("name", ["get\\_weather", "now\\ud83d", "no\nw", "\\u12"])
def test_a_name_that_is_no_text_is_no_call(answer: Any, name: str) -> None:
    text = f'<tool_call>{{"name": "{name}", "arguments": {{"a": 1}}}}</tool_call>'
    assert answer(text, "stop") == (text, [], "stop")
    other_order = f'<tool_call>{{"arguments": {{"a": 1}}, "name": "{name}"}}</tool_call>'
    assert answer(other_order, "stop") == (other_order, [], "stop")


@BOTH
def test_half_a_surrogate_pair_stays_an_escape(answer: Any) -> None:
    for text in (
        '<tool_call>{"name": "now", "arguments": {"a": "\\ud83d"}}</tool_call>',
        '<tool_call>{"arguments": {"a": "\\ud83d"}, "name": "now"}</tool_call>',
    ):
        assert answer(text, "stop") == (None, [("now", '{"a": "\\ud83d"}')], "tool_calls")
