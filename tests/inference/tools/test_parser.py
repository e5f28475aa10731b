"""Calls in answers, however the answer is cut into pieces."""

from __future__ import annotations

import json
import time
from random import Random
from typing import Any

import pytest

from inference.tools.parser import CallBegin, CallParser, CallPart
from inference.tools.style import HERMES, LLAMA, ToolStyle

ESCAPED = '<tool_call>{"name": "get\\_weather", "arguments": {"city": "Paris"}}</tool_call> then'
HALF_NAMED = '<tool_call>{"name": "f\\ud83d", "arguments": {}}</tool_call>'
HALF_NAMED_LAST = '<tool_call>{"arguments": {}, "name": "\\ud83d"}'
HALF = '{"a": "\\ud83d", "\\udc00": 1}'
NESTED = '<tool_call>{"arguments": {"a": ' + "[" * 2000 + "]" * 2000 + '}, "name": "f"}</tool_call>'
NO_JSON = '<tool_call>{"arguments": {"a": NaN, "b": 1e999}, "name": "f"}</tool_call>'
TRICKY = {"city": 'a "quoted" }{ </tool_call> \\', "n": [1, {"x": "]}"}], "é": "東京\n"}


def _parsed(parser: CallParser, pieces: list[str]) -> tuple[str, list[tuple[str, str]]]:
    text, calls = "", []
    for event in [*(event for piece in pieces for event in parser.push(piece)), *parser.finish()]:
        if isinstance(event, str):
            text += event
        elif isinstance(event, CallBegin):
            assert event.index == len(calls)
            calls.append((event.name, ""))
        else:
            assert isinstance(event, CallPart)
            assert event.index == len(calls) - 1
            calls[-1] = (calls[-1][0], calls[-1][1] + event.arguments)
    return text, calls


def _cut(text: str, draw: Random) -> list[str]:
    places = sorted(draw.sample(range(1, len(text)), min(len(text) - 1, draw.randint(0, 12)))) if len(text) > 1 else []
    return [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]


def _hermes(name: str, arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments}, ensure_ascii=False)}\n</tool_call>"


ALONE = {"parallel": False}
WEATHER = ("weather", '{"city": "Paris"}')
CASES: list[tuple[ToolStyle, dict[str, Any], str, str, list[tuple[str, str]]]] = [
    (HERMES, {}, "Just text, 1 < 2, <tool is not one.", "Just text, 1 < 2, <tool is not one.", []),
    (HERMES, {}, _hermes("weather", {"city": "Paris"}), "", [WEATHER]),
    (HERMES, {}, "Let me see. " + _hermes("weather", {"city": "Paris"}), "Let me see. ", [WEATHER]),
    (
        HERMES,
        {},
        _hermes("weather", {"city": "Paris"}) + "\n" + _hermes("now", {}) + "\n",
        "",
        [WEATHER, ("now", "{}")],
    ),
    (HERMES, {}, '<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call>', "", [("f", '{"a": 1}')]),
    (HERMES, {}, "<tool_call>nonsense</tool_call> then", "<tool_call>nonsense</tool_call> then", []),
    (HERMES, {}, "<tool_call>\n[1, 2", "<tool_call>\n[1, 2", []),
    (HERMES, {}, '<tool_call>{"name": "f", "arguments": {"a": "cut', "", [("f", '{"a": "cut')]),
    (HERMES, {}, "text <tool_", "text <tool_", []),
    (HERMES, {"begun": True}, '{"name": "f", "arguments": {"a": 1}}', "", [("f", '{"a": 1}')]),
    (HERMES, {"begun": True, "named": "f"}, '{"a": {"b": "}"}}', "", [("f", '{"a": {"b": "}"}}')]),
    (HERMES, {"begun": True, "named": "f"}, "", "", [("f", "")]),
    (HERMES, {"begun": True}, '{"name": "ge', "", []),
    (HERMES, {"begun": True}, '{"name": "f", "arguments": {"a', "", [("f", '{"a')]),
    (LLAMA, {"begun": True}, '{"na', "", []),
    (LLAMA, {}, '{"name": "weather", "parameters": {"city": "Paris"}}', "", [WEATHER]),
    (LLAMA, {}, '\n{"name": "weather", "parameters": {"city": "Paris"}} ', "", [WEATHER]),
    (LLAMA, {}, '{"city": "Paris"}', '{"city": "Paris"}', []),
    (LLAMA, {}, '{"text": "' + "x" * 700 + '"}', '{"text": "' + "x" * 700 + '"}', []),
    (LLAMA, {}, 'A {"name": "f", "parameters": {}} in text.', 'A {"name": "f", "parameters": {}} in text.', []),
    (LLAMA, {"begun": True}, '{"name": "f", "parameters": {}}', "", [("f", "{}")]),
    (LLAMA, {}, "", "", []),
    (LLAMA, {}, " " * 600 + '{"name": "f", "parameters": {}}', " " * 600 + '{"name": "f", "parameters": {}}', []),
    (HERMES, {}, ESCAPED, ESCAPED, []),
    (HERMES, {}, ESCAPED + _hermes("now", {}), ESCAPED, [("now", "{}")]),
    (HERMES, {}, '<tool_call>{"name": "a\nb", "arguments": {}}', '<tool_call>{"name": "a\nb", "arguments": {}}', []),
    (LLAMA, {}, '{"name": "get\\_weather", "parameters": {}}', '{"name": "get\\_weather", "parameters": {}}', []),
    (HERMES, {}, HALF_NAMED, HALF_NAMED, []),
    (HERMES, {}, '<tool_call>{"name": "\\u0066", "arguments": {}}</tool_call>', "", [("f", "{}")]),
    (HERMES, {}, f'<tool_call>{{"name": "f", "arguments": {HALF}}}</tool_call>', "", [("f", HALF)]),
    (HERMES, {}, f'<tool_call>{{"arguments": {HALF}, "name": "f"}}</tool_call>', "", [("f", HALF)]),
    (HERMES, {}, HALF_NAMED_LAST, HALF_NAMED_LAST, []),
    (HERMES, {}, NESTED, NESTED, []),
    (HERMES, {}, NO_JSON, NO_JSON, []),
    (HERMES, {}, '<tool_call>{"arguments": {"a": "' + "x" * 600 + '"}, "name": "f"}</tool_call>', "",
     [("f", '{"a": "' + "x" * 600 + '"}')]),
    (HERMES, ALONE, "Hm. " + _hermes("weather", {"city": "Paris"}) + " and\n" + _hermes("now", {}), "Hm. ", [WEATHER]),
    (HERMES, ALONE, '<tool_call>{"arguments": {}, "name": "f"}</tool_call>' + _hermes("now", {}), "", [("f", "{}")]),
    (HERMES, ALONE, "<tool_call>x</tool_call>" + _hermes("now", {}), "<tool_call>x</tool_call>", [("now", "{}")]),
    (HERMES, {**ALONE, "begun": True, "named": "f"}, '{"a": 1}}</tool_call>', "", [("f", '{"a": 1}')]),
    (LLAMA, ALONE, '{"name": "f", "parameters": {}}; {"name": "g", "parameters": {}}', "", [("f", "{}")]),
]  # fmt: skip


@pytest.mark.parametrize(("style", "options", "answer", "text", "calls"), CASES)
def test_an_answer_is_understood_however_it_is_cut(
    style: ToolStyle, options: dict[str, Any], answer: str, text: str, calls: list[tuple[str, str]]
) -> None:
    draw = Random(0)
    for pieces in ([answer], list(answer), *(_cut(answer, draw) for _ in range(50))):
        found = _parsed(CallParser(style, **options), pieces or [""])
        assert found == (text, calls), pieces
        json.dumps(found, ensure_ascii=False).encode()  # it can be sent


@pytest.mark.parametrize(("style", "key"), [(HERMES, "arguments"), (LLAMA, "parameters")])
@pytest.mark.parametrize("spaces", range(465, 480))
def test_a_head_as_long_as_it_may_be(style: ToolStyle, key: str, spaces: int) -> None:
    answer = f'{style.opening}{" " * spaces}{{"name": "weather", "{key}": {{"city": "Paris"}}}}{style.closing}'
    found = _parsed(CallParser(style), [answer])
    assert found in (("", [WEATHER]), (answer, []))
    for first in range(480, len(answer)):
        assert _parsed(CallParser(style), [answer[:first], answer[first:]]) == found


def test_arguments_with_everything_in_them() -> None:
    draw = Random(1)
    for _ in range(50):
        text, ((name, arguments),) = _parsed(CallParser(HERMES), _cut(_hermes("f", TRICKY), draw))
        assert (text, name, json.loads(arguments)) == ("", "f", TRICKY)


def test_arguments_are_streamed_as_they_come() -> None:
    parser = CallParser(HERMES)
    parser.push('<tool_call>\n{"name": "f", "arguments": {"a": "')
    assert parser.push("abc") == [CallPart(0, "abc")]


def test_calls_are_complete_once_the_last_ones_arguments_have_ended() -> None:
    parser = CallParser(HERMES)
    states = []
    for piece in ("Hm. ", '<tool_call>{"name": "f", "arguments": {"a": {', "}}", "}</tool_call>", "<tool_call>"):
        parser.push(piece)
        states.append(parser.complete)
    assert states == [False, False, True, True, True]
    parser.push('{"name": "g", "arguments": {"b": {}')
    parser.finish()
    assert not parser.complete


def test_ids_are_unlike() -> None:
    parser = CallParser(HERMES)
    events = parser.push(_hermes("f", {}) + _hermes("f", {}))
    ids = [event.id for event in events if isinstance(event, CallBegin)]
    assert len(set(ids)) == 2


@pytest.mark.parametrize(
    ("style", "begin", "more"),
    [
        (HERMES, '<tool_call>{"name": "', "a"),
        (HERMES, '<tool_call>{"name": "', "\\\\"),
        (HERMES, "<tool_call>", " "),
        (HERMES, '<tool_call>{"name": "f", "arguments": {}}', "x"),
        (HERMES, '<tool_call>{"arguments": {"a": "', "x"),
        (HERMES, "<tool_call>", "</"),
        (LLAMA, "", " "),
        (LLAMA, '{"name": "', "a"),
    ],
)
def test_what_never_ends_costs_each_token_the_same(style: ToolStyle, begin: str, more: str) -> None:
    """Against arguments, which are looked at once; a name that was looked at again and again took 200 times as long."""

    def seconds(begin: str, more: str) -> float:
        started = time.process_time()
        parser = CallParser(style)
        parser.push(begin)
        for _ in range(20_000):
            parser.push(more)
        parser.finish()
        return time.process_time() - started

    of_arguments = seconds('<tool_call>{"name": "f", "arguments": {"a": "', "xx")
    assert min(seconds(begin, more) for _ in range(2)) < 10 * of_arguments
