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
    assert tool_use_of({**tools, "parallel_tool_calls": True}) == ToolUse((WEATHER, NOW))
    alone = {**tools, "parallel_tool_calls": False}
    assert tool_use_of(alone) == ToolUse((WEATHER, NOW), parallel=False)
    assert tool_use_of({**alone, "tool_choice": named}) == ToolUse(
        (WEATHER, NOW), forced=True, named="now", parallel=False
    )


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


def _with(parameters: Any, **more: Any) -> dict[str, Any]:
    return {"tools": [NOW, {"type": "function", "function": {"name": "f", "parameters": parameters}}], **more}


NAMED_F = {"type": "function", "function": {"name": "f"}}


@pytest.mark.parametrize(
    "choice", ["auto", "required", "none", NAMED_F, {"type": "function", "function": {"name": "now"}}]
)
@pytest.mark.parametrize(
    "parameters",
    [
        {"type": "array"},
        {"type": ["object", "null"]},
        {"properties": {}},
        {"type": "object", "properties": {"a": {"type": "strin"}}},
        {"type": "object", "properties": {"a": {"type": ["string", 3]}}},
        {"type": "object", "properties": {"a": {"anyOf": [{"minLength": "x"}]}}},
        {"type": "object", "properties": {"a": 5}},
        {"type": "object", "properties": []},
        {"type": "object", "required": "a"},
        {"type": "object", "properties": {"a": {"enum": []}}},
        {"type": "object", "$defs": {"x": {"minimum": True}}},
    ],
)
def test_parameters_that_are_no_schema_of_an_object_are_refused_whatever_is_called(
    parameters: Any, choice: Any
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        tool_use_of(_with(parameters, tool_choice=choice))
    assert caught.value.param == "tools[1].function.parameters"


def test_keywords_that_cannot_be_enforced_are_in_the_way_only_where_they_would_have_to_be() -> None:
    odd = {"type": "object", "properties": {"a": {"not": {}}, "type": {"x-note": 1}}}
    assert tool_use_of(_with(odd)) is not None
    assert tool_use_of(_with(odd, tool_choice={"type": "function", "function": {"name": "now"}})) is not None
    for choice in ("required", NAMED_F):
        with pytest.raises(InvalidRequest, match="'not' at #/properties/a") as caught:
            tool_use_of(_with(odd, tool_choice=choice))
        assert caught.value.param == "tools[1].function.parameters"


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
