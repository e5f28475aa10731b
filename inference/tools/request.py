"""Which functions a request offers, and whether one has to be called."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from inference.errors import InvalidRequest, UnknownField
from inference.protocol import Constraint
from inference.schema_keywords import check_form, check_keywords

MAX_TOOLS = 128
_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,64}\Z")


@dataclass(frozen=True, slots=True)
class ToolUse:
    """:param tools: as the client wrote them: ``{"type": "function", "function": {"name", "description", …}}``.

    :param forced: the model has to call exactly one: ``named``, or whichever it likes. Otherwise it may call any
        number, or none.
    :param parallel: ``False``: of the calls that a model writes, only the first is given.
    """

    tools: tuple[dict[str, Any], ...]
    forced: bool = False
    named: str | None = None
    parallel: bool = True

    def constraint(self, arguments_key: str) -> Constraint | None:
        """What a forced call has to conform to, as the model writes it; the arguments alone where the name is given.

        :param arguments_key: what the model calls them.
        """
        if not self.forced:
            return None
        functions = [tool["function"] for tool in self.tools]
        if self.named is not None:
            number = [function["name"] for function in functions].index(self.named)
            return Constraint("json_schema", _written(_parameters(functions[number])), _place(number))
        calls = [
            {
                "type": "object",
                "properties": {"name": {"const": function["name"]}, arguments_key: {"$ref": f"#/$defs/{number}"}},
                "required": ["name", arguments_key],
                "additionalProperties": False,
            }
            for number, function in enumerate(functions)
        ]
        # Each schema stands where its own references can be made to find their way.
        schemas = {str(number): _moved(_parameters(function), number) for number, function in enumerate(functions)}
        return Constraint("json_schema", _written({"anyOf": calls, "$defs": schemas}), "tools")


def tool_use_of(body: Mapping[str, Any]) -> ToolUse | None:
    """What ``tools``, ``tool_choice`` and ``parallel_tool_calls`` ask for; ``None``: plain text.

    Raises :class:`InvalidRequest` naming the field.
    """
    tools, choice = body.get("tools"), body.get("tool_choice")
    parallel = body.get("parallel_tool_calls")
    if not isinstance(parallel, bool | None):
        raise InvalidRequest("parallel_tool_calls must be true or false", "parallel_tool_calls")
    if not tools and choice not in (None, "none", "auto"):
        raise InvalidRequest("tool_choice needs tools", "tool_choice")
    if tools is None:
        return None
    if not isinstance(tools, list) or len(tools) > MAX_TOOLS:
        raise InvalidRequest(f"tools must be a list of at most {MAX_TOOLS} functions", "tools")
    names = [_check(tool, f"tools[{number}]") for number, tool in enumerate(tools)]
    if len(set(names)) < len(names):
        raise InvalidRequest("Two tools have the same name", "tools")
    use = ToolUse(tuple(tools), parallel=parallel is not False)
    if choice in (None, "auto"):
        return use if tools else None
    if choice == "none":
        return None
    if choice == "required":
        return _enforceable(replace(use, forced=True))
    named = choice.get("function") if isinstance(choice, dict) and choice.get("type") == "function" else None
    if not isinstance(named, dict) or set(named) != {"name"} or set(choice) != {"type", "function"}:
        raise InvalidRequest("tool_choice must be none, auto, required or name one function", "tool_choice")
    if named["name"] not in names:
        raise InvalidRequest("tool_choice names a function that is not among tools", "tool_choice")
    return _enforceable(replace(use, forced=True, named=named["name"]))


def _enforceable(use: ToolUse) -> ToolUse:
    for number, tool in enumerate(use.tools):
        if use.named in (None, tool["function"]["name"]):
            check_keywords(_parameters(tool["function"]), _place(number))
    return use


def _check(tool: Any, where: str) -> str:
    """The function's name."""
    if not isinstance(tool, dict) or tool.get("type") != "function" or set(tool) != {"type", "function"}:
        raise InvalidRequest(f"{where} must be an object of type 'function' with a function", where)
    function, where = tool["function"], f"{where}.function"
    if not isinstance(function, dict):
        raise InvalidRequest(f"{where} must be an object", where)
    for key, value in function.items():
        if key not in ("name", "description", "parameters", "strict"):
            raise UnknownField(f"{where}.{key[:64]}")
        expected = {"parameters": dict, "strict": bool}.get(key, str)
        if not isinstance(value, expected) and (value is not None or key == "name"):
            raise InvalidRequest(f"{where}.{key} is of the wrong type", f"{where}.{key}")
    name = function.get("name")
    if not isinstance(name, str) or not _NAME.match(name):
        raise InvalidRequest(f"{where}.name must be 1 to 64 letters, digits, _, . or -", f"{where}.name")
    if function.get("parameters"):
        _check_parameters(function["parameters"], f"{where}.parameters")
    return name


def _check_parameters(schema: dict[str, Any], where: str) -> None:
    """Arguments are always an object: clients parse them as one."""
    if schema.get("type") != "object":
        raise InvalidRequest(f"{where} must be a schema of type 'object'", where)
    check_form(schema, where)


def _parameters(function: dict[str, Any]) -> dict[str, Any]:
    return function.get("parameters") or {"type": "object", "properties": {}, "additionalProperties": False}


def _moved(schema: Any, number: int) -> Any:
    """With references that start at ``#/$defs/<number>``."""
    if isinstance(schema, dict):
        moved = {key: _moved(value, number) for key, value in schema.items()}
        reference = moved.get("$ref")
        if isinstance(reference, str) and reference.startswith("#"):
            moved["$ref"] = f"#/$defs/{number}{reference[1:]}"
        return moved
    return [_moved(value, number) for value in schema] if isinstance(schema, list) else schema


def _place(number: int) -> str:
    return f"tools[{number}].function.parameters"


def _written(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
