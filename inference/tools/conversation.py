"""Conversations with calls and results, as chat templates expect them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from inference.errors import InvalidRequest
from inference.nesting import is_too_deep
from inference.tools.style import ToolStyle

# Hermes' and Qwen's own words, which many models have seen in training.
_BLOCK = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""


def has_calls(messages: Sequence[dict[str, Any]]) -> bool:
    """Whether a conversation holds calls or their results."""
    return any(message.get("role") == "tool" or message.get("tool_calls") for message in messages)


def with_tools(
    messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]], style: ToolStyle
) -> tuple[list[dict[str, Any]], list[dict[str, Any]] | None]:
    """Messages and tools for the template, arguments as objects instead of texts.

    For a template that knows no tools, calls and results become text and the tools a part of the system message.
    Raises :class:`InvalidRequest` naming the message at fault.
    """
    known = [_checked(message, f"messages[{number}]") for number, message in enumerate(messages)]
    if style.templated:
        return known, list(tools) or None
    plain = [_as_text(message) for message in known]
    if not tools:
        return plain, None
    block = _BLOCK.format(tools="\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools))
    if plain and plain[0].get("role") == "system":
        return [{"role": "system", "content": f"{_text(plain[0])}\n\n{block}"}, *plain[1:]], None
    return [{"role": "system", "content": block}, *plain], None


def _checked(message: dict[str, Any], where: str) -> dict[str, Any]:
    calls = message.get("tool_calls")
    if message.get("role") == "tool" and not isinstance(message.get("tool_call_id"), str):
        raise InvalidRequest(f"{where}.tool_call_id must name the call that this is the result of", where)
    if not calls:
        return message
    if message.get("role") != "assistant" or not isinstance(calls, list):
        raise InvalidRequest(f"{where}.tool_calls must be a list of an assistant's calls", f"{where}.tool_calls")
    return {**message, "tool_calls": [_call(call, f"{where}.tool_calls[{n}]") for n, call in enumerate(calls)]}


def _call(call: Any, where: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise InvalidRequest(f"{where} must be a call of a function with a name", where)
    try:
        arguments = json.loads(function["arguments"], parse_constant=_refuse)
        if not isinstance(arguments, dict) or is_too_deep(arguments):
            raise ValueError
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"{where}.function.arguments must be an object written as JSON", where) from error
    return {**call, "function": {"name": function["name"], "arguments": arguments}}


def _refuse(constant: str) -> Any:
    """``NaN`` and the infinities: Python's own, no JSON."""
    raise ValueError(constant)


def _as_text(message: dict[str, Any]) -> dict[str, Any]:
    if message.get("role") == "tool":
        return {"role": "user", "content": f"<tool_response>\n{_text(message)}\n</tool_response>"}
    if not message.get("tool_calls"):
        return message
    calls = [json.dumps(call["function"], ensure_ascii=False) for call in message["tool_calls"]]
    parts = [_text(message), *(f"<tool_call>\n{call}\n</tool_call>" for call in calls)]
    return {"role": "assistant", "content": "\n".join(part for part in parts if part)}


def _text(message: dict[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, list):
        return "\n".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""
