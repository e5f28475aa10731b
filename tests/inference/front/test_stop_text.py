"""Stop strings against the plain definition: the text before the earliest one."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from inference.front import stop_text
from inference.front.stop_text import StopText

letters = st.text("ab", max_size=12)


@given(pieces=st.lists(letters, max_size=12), stops=st.lists(st.text("ab", min_size=1, max_size=5), min_size=1))
def test_pieces_give_the_text_before_the_earliest_stop(pieces: list[str], stops: list[str]) -> None:
    stop_text, given_out, stopped, text = StopText(stops), "", False, ""
    for piece in pieces:
        text += piece
        out, stopped = stop_text.push(piece)
        given_out += out
        if stopped:
            break
    if not stopped:
        given_out += stop_text.flush()
    cuts = [text.find(stop) for stop in stops if stop in text]
    assert stopped == bool(cuts)
    if cuts:
        # A stop string that begins earlier may end later than the one that was complete first.
        assert any(given_out == text[:at] for at in cuts)
        assert not any(stop in given_out for stop in stops)
    else:
        assert given_out == text


@given(
    pieces=st.lists(letters, max_size=12),
    stops=st.lists(st.text("ab", min_size=1, max_size=5), min_size=1),
    spared=st.integers(0, 6),
)
def test_stops_that_are_complete_before_the_text_may_end_count_for_nothing(
    pieces: list[str], stops: list[str], spared: int
) -> None:
    stop_text, given_out, text, free = StopText(stops), "", "", 0
    for count, piece in enumerate(pieces):
        text += piece
        if count < spared:
            free = len(text)
        out, stopped = stop_text.push(piece, may_end=count >= spared)
        given_out += out
        ends = [
            at for stop in stops for at in range(len(text)) if text.startswith(stop, at) and at + len(stop) > free
        ]  # fmt: skip
        assert stopped == bool(ends)
        if stopped:
            assert given_out == text[: min(ends)]
            return
    assert given_out + stop_text.flush() == text


class Plain:
    """The specification: looks for every stop string in all that is held, and tries every length of its beginning."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self._spared = 0  # so many of the held characters came while the text could not end

    def push(self, piece: str, *, may_end: bool = True) -> tuple[str, bool]:
        text = self._held + piece
        if not may_end:
            self._spared = len(text)
        first = self._spared + 1  # no stop string ends before that many characters
        found = [at for stop in self._stops if (at := text.find(stop, max(0, first - len(stop)))) >= 0]
        if found:
            self._held = ""
            return text[: min(found)], True
        keep = max((self._overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - keep :]
        self._spared = max(0, self._spared - (len(text) - keep))
        return text[: len(text) - keep], False

    def flush(self) -> str:
        held, self._held = self._held, ""
        return held

    @staticmethod
    def _overlap(text: str, stop: str) -> int:
        return next((n for n in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:n])), 0)


@st.composite
def _streams(draw: st.DrawFn) -> tuple[list[str], list[tuple[str, bool]]]:
    """Stop strings, and pieces with whether the text may end there; of few letters, so that much is held back."""
    letters = "abcé"[: draw(st.integers(1, 4))]
    stops = draw(st.lists(st.text(letters, min_size=1, max_size=12), max_size=5))
    pieces = st.text(letters, max_size=15)
    if stops:  # much of a stop string, and then perhaps the rest
        part = st.builds(lambda stop, start, end: stop[start:end], st.sampled_from(stops), *[st.integers(0, 12)] * 2)
        pieces |= part
    return stops, draw(st.lists(st.tuples(pieces, st.booleans()), max_size=25))


@settings(max_examples=1000, deadline=None)
@given(stream=_streams())
def test_every_piece_gives_what_the_plain_form_gives(stream: tuple[list[str], list[tuple[str, bool]]]) -> None:
    stops, pieces = stream
    plain, ours = Plain(stops), StopText(stops)
    for piece, may_end in pieces:
        expected = plain.push(piece, may_end=may_end)
        assert ours.push(piece, may_end=may_end) == expected
        if expected[1]:
            return
    assert ours.flush() == plain.flush()


def _opcodes(work: Any) -> int:
    """Steps of the interpreter in ``stop_text`` while it works: what a clock would measure, without the noise."""
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        if frame.f_code.co_filename != stop_text.__file__:
            return None
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def test_a_token_costs_no_more_for_what_is_held_back() -> None:
    """One stop string holds back nearly a thousand characters; to the others each of them could be a beginning."""
    stops = ["a" * 1000, *(chr(ord("b") + number) * 500 + "a" * 500 for number in range(15))]
    held = StopText(stops)
    assert held.push("a" * 900) == ("", False)
    fresh = StopText(stops)
    piece = "aaaa"
    cost, more = (_opcodes(lambda stop=stop: stop.push(piece)) for stop in (fresh, held))
    assert more <= 1.5 * cost
    assert more < 200 * len(piece) * len(stops)


def test_a_text_costs_in_proportion_to_its_length() -> None:
    """However often a beginning turns out to be none."""
    stops = ["a" * 999 + "b", "ab" * 500, "aab" * 333]

    def cost(count: int) -> int:
        stop = StopText(stops)
        return _opcodes(lambda: [stop.push(piece) for _ in range(count) for piece in ("aaaa", "abab", "aaba", "c")])

    assert cost(400) < 2.2 * cost(200)
    assert cost(200) < 300 * 200 * 13 * len(stops)
