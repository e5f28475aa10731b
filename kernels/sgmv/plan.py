"""Which rows of a batch belong to which slot: worked out once a step, used by every site of every layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from sgmv.errors import SgmvArgumentError

# A group this large amortises its own pair of matrix products; smaller ones share a batched product.
LARGE_GROUP = 32


@dataclass(frozen=True, slots=True)
class Gather:
    """Rows of several slots as one ``[groups, width]`` grid; a short group is filled up with its own rows.

    :param rows: ``[groups·width]`` row of x for each cell; ``None`` where the grid is ``x[start:stop]`` itself.
    :param cells: the real cells in the order in which their results are added; ``None`` where that is the grid itself.
        A filled-up cell is not among them: its result is dropped.
    :param targets: row of y for each of ``cells``; ``None`` where they are ``start … stop`` in that order.
    :param whole: ``start … stop`` are all the rows of the batch.
    """

    groups: int
    width: int
    start: int
    stop: int
    whole: bool
    rows: Tensor | None
    cells: Tensor | None
    targets: Tensor | None


class Plan:
    """Rows grouped by slot.

    :param slots: slot of each row; negative for a row without an adapter. Kept as a tuple.
    :raises SgmvArgumentError: ``slots`` holds something that is not an integer.
    """

    def __init__(self, slots: Sequence[int]) -> None:
        groups: dict[int, list[int]] = {}
        for row, slot in enumerate(slots):
            if not isinstance(slot, int):
                raise SgmvArgumentError("slots", f"row {row} is {slot!r}, not an integer")
            if slot >= 0:
                groups.setdefault(slot, []).append(row)
        self.slots = tuple(slots)
        self.num_rows = len(slots)
        self.small = tuple(sorted(slot for slot, rows in groups.items() if len(rows) < LARGE_GROUP))
        self.large = tuple(sorted(slot for slot, rows in groups.items() if len(rows) >= LARGE_GROUP))
        self._rows = groups
        self._gathers: dict[tuple[int, ...], Gather] = {}
        self._spans: dict[int, tuple[int, int] | Tensor] = {}

    @property
    def active(self) -> bool:
        return bool(self._rows)

    def span(self, slot: int) -> tuple[int, int] | Tensor:
        """Rows of one slot: a half-open range where they are consecutive, an index otherwise."""
        found = self._spans.get(slot)
        if found is None:
            rows = self._rows[slot]
            found = (rows[0], rows[-1] + 1) if _consecutive(rows) else torch.tensor(rows)
            self._spans[slot] = found
        return found

    def gather(self, slots: tuple[int, ...]) -> Gather:
        """The grid of ``slots`` in that order, all of which have rows."""
        found = self._gathers.get(slots)
        if found is None:
            found = self._gathers[slots] = _gather([self._rows[slot] for slot in slots], self.num_rows)
        return found


def _gather(groups: list[list[int]], num_rows: int) -> Gather:
    width = max(len(rows) for rows in groups)
    cells = [(row, group * width + cell) for group, rows in enumerate(groups) for cell, row in enumerate(rows)]
    padded = [row for rows in groups for row in rows + [rows[-1]] * (width - len(rows))]
    as_they_lie = _consecutive(padded)
    cells.sort()
    rows = [row for row, _ in cells]
    start, stop = rows[0], rows[-1] + 1
    order = [cell for _, cell in cells]
    return Gather(
        groups=len(groups),
        width=width,
        start=start,
        stop=stop,
        whole=stop - start == num_rows,
        rows=None if as_they_lie else torch.tensor(padded),
        cells=None if order == list(range(len(padded))) else torch.tensor(order),
        targets=None if _consecutive(rows) else torch.tensor(rows),
    )


def _consecutive(rows: list[int]) -> bool:
    return all(b - a == 1 for a, b in pairwise(rows))
