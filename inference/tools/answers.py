"""The answers of one request that offered tools, in OpenAI's shapes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from inference.protocol import Delta
from inference.tools.parser import CallBegin, CallParser, CallPart, Event
from inference.tools.request import ToolUse
from inference.tools.style import ToolStyle

if TYPE_CHECKING:
    from inference.prompt import PromptRenderer


class ToolAnswers:
    """Finds the calls in each choice. An answer that calls something ends with ``tool_calls`` instead of ``stop``, if
    the arguments are whole: a client parses them then. So does one whose only call is whole, however the rest ended.
    """

    def __init__(self, use: ToolUse, style: ToolStyle) -> None:
        self._use, self._style = use, style
        self._parsers: dict[int, CallParser] = {}

    @classmethod
    def of(cls, use: ToolUse | None, renderer: PromptRenderer) -> ToolAnswers | None:
        return None if use is None else cls(use, renderer.tool_style)

    def delta(self, delta: Delta) -> tuple[dict[str, Any], str | None]:
        """The ``delta`` of a streamed chunk, which may be empty, and the finish reason."""
        events, finish = self._events(delta)
        content = "".join(event for event in events if isinstance(event, str))
        calls: dict[int, dict[str, Any]] = {}
        for event in events:
            if isinstance(event, CallBegin):
                calls[event.index] = event.openai()
            elif isinstance(event, CallPart):
                entry = calls.setdefault(event.index, CallPart(event.index, "").openai())
                entry["function"]["arguments"] += event.arguments
        shown: dict[str, Any] = {"content": content} if content else {}
        if calls:
            shown["tool_calls"] = list(calls.values())
        return shown, finish

    def whole(self, delta: Delta) -> tuple[dict[str, Any], str | None]:
        """``content`` and ``tool_calls`` of a whole message, and the finish reason."""
        events, finish = self._events(delta)
        content = "".join(event for event in events if isinstance(event, str))
        calls: list[dict[str, Any]] = []
        for event in events:
            if isinstance(event, CallBegin):
                calls.append({key: value for key, value in event.openai().items() if key != "index"})
            elif isinstance(event, CallPart):
                calls[-1]["function"]["arguments"] += event.arguments
        if not calls:
            return {"content": None if self._use.forced and not content else content}, finish
        return {"content": content if content.strip() else None, "tool_calls": calls}, finish

    def _events(self, delta: Delta) -> tuple[list[Event], str | None]:
        parser = self._parsers.get(delta.index)
        if parser is None:
            use = self._use
            parser = CallParser(self._style, begun=use.forced, named=use.named, parallel=use.parallel)
            self._parsers[delta.index] = parser
        events = parser.push(delta.text)
        if delta.finish_reason is None:
            return events, None
        events += parser.finish()
        ends = ("stop", "length") if parser.over else ("stop",)
        return events, "tool_calls" if parser.complete and delta.finish_reason in ends else delta.finish_reason
