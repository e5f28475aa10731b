"""Stop strings over the borders of tokens."""

from __future__ import annotations

from collections.abc import Sequence


class StopText:
    """Finds the earliest stop string in text that arrives in pieces; the stop string is never given out.

    What could be the beginning of a stop string is held back until it is decided. A stop string that is complete while
    the text may not end yet is text like any other; one that only begins there still counts, as in vLLM.

    The work of a piece is in proportion to its characters and to the number of stop strings, however much is held back:
    it is done on the front's event loop, and clients choose the stop strings.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [_Stop(stop) for stop in stops]
        self._held = ""

    def push(self, piece: str, *, may_end: bool = True) -> tuple[str, bool]:
        """Text that is safe to give out, and whether a stop string was reached; then nothing may follow."""
        text = self._held + piece
        ends = [(stop.push(piece, may_end=may_end), stop.size) for stop in self._stops]
        found = [len(self._held) + end - size for end, size in ends if end is not None]
        if found:
            self._held = ""
            return text[: min(found)], True
        safe = len(text) - max((stop.begun for stop in self._stops), default=0)
        self._held = text[safe:]
        return text[:safe], False

    def flush(self) -> str:
        """What was held back, when the text has ended otherwise."""
        held, self._held = self._held, ""
        return held


class _Stop:
    """How much of one stop string the text ends with, character by character (Knuth, Morris and Pratt).

    The table is made as far as the text has got: a thousand characters that nobody writes cost nothing.

    :ivar size: characters of the stop string, at least one.
    :ivar begun: length of the longest end of the text that begins the stop string without being all of it.
    """

    def __init__(self, stop: str) -> None:
        self.size = len(stop)
        self.begun = 0
        self._stop = stop
        self._borders = [0, 0]  # [n]: how much of the stop its first n characters end with, themselves apart

    def push(self, piece: str, *, may_end: bool) -> int | None:
        """Where in ``piece`` the stop string first ends, if it may end the text; else all of ``piece`` is taken in."""
        for end, character in enumerate(piece, start=1):
            self.begun = self._after(self.begun, character)
            if len(self._borders) <= self.begun:
                self._borders.append(self._after(self._borders[-1], character))
            if self.begun == self.size:
                self.begun = self._borders[self.size]
                if may_end:
                    return end
        return None

    def _after(self, begun: int, character: str) -> int:
        """``begun`` after one more character."""
        while begun and self._stop[begun] != character:
            begun = self._borders[begun]
        return begun + (self._stop[begun] == character)
