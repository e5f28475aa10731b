"""What a step samples: after which of its tokens, and which of the samples stand."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from inference.core.step import Row, Sampled
from inference.protocol import TokenLogprob


class Draws:
    """A draw after the last known token of each row with ``params``, and after each of its guesses.

    :param rows: a step's, in the order in which their tokens lie end to end.
    :ivar rows: of each draw its row, as it is there. :ivar places: its token, among all of the step's, ascending.
    :ivar slots: its adapter's. :ivar last: the last draw of each row that has any, by the row's index.
    """

    def __init__(self, rows: Sequence[Row]) -> None:
        self._asked = rows
        self.rows: list[Row] = []
        self.places: list[int] = []
        self.slots: list[int] = []
        self.last: dict[int, int] = {}
        end = 0
        for index, row in enumerate(rows):
            end += len(row.tokens)
            if row.params is not None:
                self.places.extend(range(end - 1 - row.draft, end))
                self.slots.extend([row.slot] * (row.draft + 1))
                self.rows.extend(_along(row))
                self.last[index] = len(self.rows) - 1

    @property
    def tops(self) -> dict[int, int]:
        """Draw → how many of the most likely tokens are to be reported; only those that ask for log-probabilities."""
        return {
            draw: row.params.logprobs
            for draw, row in enumerate(self.rows)
            if row.params is not None and row.params.logprobs is not None
        }

    def outcome(
        self,
        chosen: Sequence[int],
        logprobs: dict[int, TokenLogprob],
        *,
        late: Collection[int] = (),
        broken: Collection[int] = (),
    ) -> list[Sampled | None]:
        """What each of the step's rows got.

        :param chosen: a token for each draw. :param logprobs: by draw, of those in :attr:`tops`.
        :param late: draws that came to nothing. :param broken: those whose logits are no numbers.
        """
        results: list[Sampled | None] = [None] * len(self._asked)
        for index, last in self.last.items():
            row = self._asked[index]
            first = last - row.draft
            sound = next((draw for draw in range(first, last + 1) if draw in broken), last + 1)
            count = 0 if first in late else _accepted(row, chosen[first:sound])
            asks = row.params is not None and row.params.logprobs is not None
            results[index] = Sampled(
                list(chosen[first : first + count]),
                [logprobs[draw] for draw in range(first, first + count)] if asks else None,
                broken=first in broken and first not in late,
            )
        return results


def _along(row: Row) -> list[Row]:
    """The row as it is at each position to sample at: those after a guess see the guess as generated."""
    if not row.draft:
        return [row]
    guesses = list(row.tokens[-row.draft :])
    return [replace(row, output=[*row.output, *guesses[:count]]) for count in range(row.draft + 1)]


def _accepted(row: Row, chosen: Sequence[int]) -> int:
    """How many of the chosen tokens stand: one, and one more for each guess before the first wrong one."""
    count = 1
    for guess, token in zip(row.tokens[len(row.tokens) - row.draft :], chosen, strict=False):
        if guess != token:
            break
        count += 1
    return min(count, len(chosen))
