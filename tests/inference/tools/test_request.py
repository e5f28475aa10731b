"""What may be asked for, and what a forced call is held to."""

from __future__ import annotations

import json
from typing import Any

import pytest

from inference.errors import InvalidRequest
from inference.tools.request import ToolUse, tool_use_of

PARAMETERS = {
    "type": "object",
    "properties": {"where": {"$ref": "#/$defs/place"}},
    "required": ["where"],
    "$defs": {"place": {"type": "string"}},
}
WEATHER = {"type": "function", "function": {"name": "weather", "description": "d", "parameters": PARAMETERS}}
NOW = {"type": "function", "function": {"name": "now"}}


def test_choices() -> None:
    tools = {"tools": [WEATHER, NOW]}
    assert tool_use_of({}) is None
    assert tool_use_of({"tools": []}) is None
    assert tool_use_of({**tools, "tool_choice": "none"}) is None
    assert tool_use_of(tools) == tool_use_of({**tools, "tool_choice": "auto"}) == ToolUse((WEATHER, NOW))
    assert tool_use_of({**tools, "tool_choice": "required"}) == ToolUse((WEATHER, NOW), forced=True)
    named = {"type": "function", "function": {"name": "now"}}
    assert tool_use_of({**tools, "tool_choice": named}) == ToolUse((WEATHER, NOW), forced=True, named="now")


def test_a_forced_call_keeps_its_references() -> None:
    use = ToolUse((NOW, WEATHER), forced=True)
    constraint = use.constraint("arguments")
    assert constraint is not None
    schema = json.loads(constraint.source)
    assert schema["$defs"]["1"]["properties"]["where"] == {"$ref": "#/$defs/1/$defs/place"}
    named = ToolUse((NOW, WEATHER), forced=True, named="weather").constraint("arguments")
    assert named is not None
    assert (json.loads(named.source), named.field) == (PARAMETERS, "tools[1].function.parameters")
    assert ToolUse((NOW,)).constraint("arguments") is None


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"tools": "x"}, "tools"),
        ({"tools": [NOW] * 129}, "tools"),
        ({"tools": [NOW, NOW]}, "tools"),
        ({"tools": [{"type": "retrieval"}]}, "tools[0]"),
        ({"tools": [{"type": "function", "function": 3}]}, "tools[0].function"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tools": [NOW, {"type": "function", "function": {"name": "a", "strict": 1}}]}, "tools[1].function.strict"),
        ({"tools": [{"type": "function", "function": {"name": "a", "x": 1}}]}, "tools[0].function.x"),
        ({"tools": [NOW], "tool_choice": "any"}, "tool_choice"),
        ({"tools": [NOW], "tool_choice": {"type": "function", "function": {"name": "then"}}}, "tool_choice"),
        ({"tools": [NOW], "tool_choice": {"type": "function"}}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [NOW], "parallel_tool_calls": 1}, "parallel_tool_calls"),
    ],
)  # fmt: skip
def test_what_is_refused(body: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        tool_use_of(body)
    assert caught.value.param == param
