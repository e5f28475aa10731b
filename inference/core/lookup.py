"""Guesses a sequence's next tokens from what followed the same tokens earlier (prompt lookup)."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

MATCH = 2
"""Tokens that have to agree before anything is guessed."""
_LONGEST_MATCH = 16
_CANDIDATES = 8
_INDEXED_AT_ONCE = 4096
_LONGEST_PAUSE = 32


class Lookup:
    """An index of one sequence's pairs of tokens, each linked to the same pair's earlier place.

    Guesses cost a position of the step each, so their number follows their luck: it doubles when all were right and
    halves when none was, and after several failures in a row some steps go without.

    :param most: guesses in one step, ≥ 1.
    """

    def __init__(self, most: int) -> None:
        self._most = self._length = most
        self._last: dict[int, int] = {}
        self._earlier = array("q", [-1])  # of each place in the sequence, by the pair that ends there
        self._failures = 0
        self._pause = 0

    def guess(self, tokens: Sequence[int], limit: int) -> list[int]:
        """At most ``limit`` tokens that may follow ``tokens``, which must continue what was given before."""
        self._index(tokens)
        if self._pause:
            self._pause -= 1
            return []
        limit = min(limit, self._length)
        if limit < 1 or len(tokens) <= MATCH:
            return []
        place = self._longest_match(tokens)
        if place is None:
            return []
        guesses: list[int] = []
        for source in range(place + 1, place + 1 + limit):
            # A match that overlaps the end goes round: "abab" continues with "abab".
            guesses.append(tokens[source] if source < len(tokens) else guesses[source - len(tokens)])
        return guesses

    def learn(self, guessed: int, right: int) -> None:
        """How many of the last guesses were right."""
        if right:
            self._failures = 0
            if right == guessed:
                self._length = min(2 * self._length, self._most)
            return
        self._failures += 1
        self._length = max(1, self._length // 2)
        if self._failures > 1:
            self._pause = min(2 ** (self._failures - 1), _LONGEST_PAUSE)

    def _index(self, tokens: Sequence[int]) -> None:
        """All pairs but the last, which is what is looked up. A long prompt takes several steps."""
        start = len(self._earlier)
        for place in range(start, min(len(tokens) - 1, start + _INDEXED_AT_ONCE)):
            pair = tokens[place - 1] << 32 | tokens[place]
            self._earlier.append(self._last.get(pair, -1))
            self._last[pair] = place

    def _longest_match(self, tokens: Sequence[int]) -> int | None:
        """Where the longest match of the last tokens ends; the latest of equals."""
        best, longest = None, 0
        place = self._last.get(tokens[-2] << 32 | tokens[-1], -1)
        for _ in range(_CANDIDATES):
            if place < 0:
                break
            length = MATCH
            while length < min(_LONGEST_MATCH, place + 1) and tokens[place - length] == tokens[-1 - length]:
                length += 1
            if length > longest:
                best, longest = place, length
            place = self._earlier[place]
        return best
