"""Stop strings against the plain definition: the text before the earliest one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

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
