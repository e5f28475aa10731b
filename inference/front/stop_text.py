"""Stop strings over the borders of tokens."""

from __future__ import annotations

from collections.abc import Sequence


class StopText:
    """Finds the earliest stop string in text that arrives in pieces; the stop string is never given out.

    What could be the beginning of a stop string is held back until it is decided. A stop string that is complete while
    the text may not end yet is text like any other; one that only begins there still counts, as in vLLM.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self._spared = 0  # so many of the held characters came while the text could not end

    def push(self, piece: str, *, may_end: bool = True) -> tuple[str, bool]:
        """Text that is safe to give out, and whether a stop string was reached."""
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
        """What was held back, when the text has ended otherwise."""
        held, self._held = self._held, ""
        return held

    @staticmethod
    def _overlap(text: str, stop: str) -> int:
        """Length of the longest end of ``text`` that begins ``stop``."""
        return next((n for n in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:n])), 0)
