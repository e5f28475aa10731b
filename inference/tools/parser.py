"""Calls found in an answer while it is being written."""

from __future__ import annotations

import json
import re
import secrets
from dataclasses import dataclass
from typing import Any

from inference.tools.style import ToolStyle

MAX_HEAD = 512
"""Characters within which a call has to have said its name: they are looked at again with each token. After that, one
whose end is marked is known by its end, and what has no mark is text.
"""

PIECE = 4096
"""Characters of a whole answer that are taken together: what is held is copied with each call in it."""


@dataclass(frozen=True, slots=True)
class CallBegin:
    """A call whose name is known; its arguments follow as :class:`CallPart`."""

    index: int
    id: str
    name: str

    def openai(self) -> dict[str, Any]:
        function = {"name": self.name, "arguments": ""}
        return {"index": self.index, "id": self.id, "type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class CallPart:
    """More of a call's arguments, as JSON text."""

    index: int
    arguments: str

    def openai(self) -> dict[str, Any]:
        return {"index": self.index, "function": {"arguments": self.arguments}}


Event = str | CallBegin | CallPart


class CallParser:
    """Takes an answer's text as it comes and gives text and calls. What turns out to be no call is text again.

    :param begun: the prompt ended with the beginning of a call: of the function ``named``, or of any.
    :param parallel: there may be several calls. Otherwise nothing of what follows the first is given.
    """

    def __init__(
        self, style: ToolStyle, *, begun: bool = False, named: str | None = None, parallel: bool = True
    ) -> None:
        self._style, self._parallel = style, parallel
        self._head = re.compile(
            r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\S)'
        )
        self._held = ""
        self._looked = 0  # characters of it in which the closing mark does not begin
        self._in_call = self._forced = begun
        self._value: _Value | None = None
        self._named = named if begun else None
        self._starts = not style.opening and not begun  # a call may only be the beginning of the answer
        self.calls = 0

    @property
    def complete(self) -> bool:
        """There are calls, and the arguments of each have ended."""
        return self.calls > 0 and (self._value is None or self._value.ended)

    @property
    def over(self) -> bool:
        """The only call that may be there has ended."""
        return not self._parallel and self.complete

    def push(self, text: str) -> list[Event]:
        events: list[Event] = []
        if self._named is not None:
            events.append(self._begin(self._named))
            self._named = None
        for start in range(0, len(text), PIECE):
            self._held += text[start : start + PIECE]
            while self._held and not self.over and self._step(events):
                pass
        if self.over:
            self._held = ""
        return events

    def finish(self) -> list[Event]:
        """What was held back: nothing more comes."""
        held, self._held = self._held, ""
        if not held or self._value is not None:
            return []
        if self._forced and not self.calls:  # cut within the head: the client asked for a call, this is none
            return self._whole(held)
        if self._in_call and self._style.opening and not self._style.closing.startswith(held.strip()):
            return self._whole(held) or [self._style.opening + held]
        return [] if self._in_call and not held.strip() else self._whole(held) or [held]

    def _step(self, events: list[Event]) -> bool:
        """Whether something of what is held was taken."""
        if self._value is not None:
            return self._arguments(self._value, events)
        if self._in_call:
            return self._call(events)
        if self._starts:
            return self._beginning(events)
        return self._text(events)

    def _text(self, events: list[Event]) -> bool:
        opening = self._style.opening
        if not opening:
            events.append(self._held)
            self._held = ""
            return False
        at = self._held.find(opening)
        if at >= 0:
            before, self._held, self._in_call = self._held[:at], self._held[at + len(opening) :], True
            self._looked = 0
        else:
            keep = next((n for n in range(len(opening) - 1, 0, -1) if self._held.endswith(opening[:n])), 0)
            before, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        if before.strip() or (before and not self.calls):
            events.append(before)
        return at >= 0

    def _beginning(self, events: list[Event]) -> bool:
        """Where the whole answer is a call or none."""
        start = self._held.lstrip()
        if not start and len(self._held) <= MAX_HEAD:
            return False
        self._in_call, self._starts = start.startswith("{"), False
        return True

    def _call(self, events: list[Event]) -> bool:
        """The head of a call, as far as it is there."""
        match = self._head.match(self._held, 0, MAX_HEAD) if self._looked < MAX_HEAD else None
        if match is not None and (name := _name(match.group(1))) is not None:
            self._held = self._held[match.end() :]
            events.append(self._begin(name))
            return True
        closing = self._style.closing
        if match is not None or (not closing and len(self._held) > MAX_HEAD):  # no call
            self._in_call = False
            events += [self._style.opening] if self._style.opening else []
            return True
        at = self._held.find(closing, self._looked) if closing else -1
        if at < 0:
            self._looked = max(0, len(self._held) - len(closing))
            return False
        # The parts in another order, or no call at all.
        call, self._held, self._in_call = self._held[:at], self._held[at + len(closing) :], False
        events += self._whole(call) or [self._style.opening + call + closing]
        return True

    def _arguments(self, value: _Value, events: list[Event]) -> bool:
        count = value.take(self._held)
        if count:
            events.append(CallPart(self.calls - 1, self._held[:count]))
            self._held = self._held[count:]
        if not value.ended:
            return False
        closing = self._style.closing
        if not closing:  # what may follow is the call's own brace, and nothing of meaning
            self._held = ""
            return False
        at = self._held.find(closing)
        if at < 0:
            self._held = self._held[1 - len(closing) :]  # the rest is nothing, and would be looked at again
            return False
        self._held, self._value, self._in_call = self._held[at + len(closing) :], None, False
        return True

    def _begin(self, name: str) -> CallBegin:
        self.calls += 1
        self._value = _Value()
        return CallBegin(self.calls - 1, f"call_{secrets.token_hex(12)}", name)

    def _whole(self, text: str) -> list[Event]:
        """A call that is known as a whole; empty if it is none."""
        try:
            call = json.loads(text)
            name, arguments = call["name"], call.get("arguments", call.get("parameters", {}))
            written = _written(arguments)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return []
        if not isinstance(name, str) or not _is_text(name) or not isinstance(arguments, dict):
            return []
        begin = self._begin(name)
        self._value = None
        return [begin, CallPart(begin.index, written)]


class _Value:
    """Finds where a JSON value ends."""

    def __init__(self) -> None:
        self.ended = False
        self._depth = 0
        self._quoted = self._escaped = False

    def take(self, text: str) -> int:
        """How many of these characters belong to the value."""
        for count, character in enumerate(text):
            if self.ended:
                return count
            if self._quoted:
                self._quoted = self._escaped or character != '"'
                self._escaped = character == "\\" and not self._escaped
            elif character == '"':
                self._quoted = True
            elif character in "{[":
                self._depth += 1
            elif character in "}]":
                self._depth -= 1
                if self._depth < 0:  # the call's own brace, after a value that is no object
                    self.ended = True
                    return count
                self.ended = self._depth == 0
        return len(text)


def _name(written: str) -> str | None:
    """``None``: it is no JSON, as with a Markdown escape in it, or no text."""
    try:
        name: str = json.loads(written)
    except ValueError:
        return None
    return name if _is_text(name) else None


def _written(arguments: Any) -> str:
    """As JSON. Half of a surrogate pair stays an escape: it is no text. Raises ``ValueError`` for what JSON lacks."""
    written = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    return written if _is_text(written) else json.dumps(arguments)


def _is_text(value: str) -> bool:
    """Whether it can be sent: it has no half of a surrogate pair."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
