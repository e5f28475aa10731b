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
    :param keep: cells that are real, or ``None`` for all. A filled-up cell's result is dropped.
    :param targets: row of y for each kept cell.
    """

    groups: int
    width: int
    start: int
    stop: int
    rows: Tensor | None
    keep: Tensor | None
    targets: Tensor | None


class Plan:
    """Rows grouped by slot.

    :param slots: slot of each row; negative for a row without an adapter.
    :raises SgmvArgumentError: ``slots`` holds something that is not an integer.
    """

    def __init__(self, slots: Sequence[int]) -> None:
        groups: dict[int, list[int]] = {}
        for row, slot in enumerate(slots):
            if not isinstance(slot, int):
                raise SgmvArgumentError("slots", f"row {row} is {slot!r}, not an integer")
            if slot >= 0:
                groups.setdefault(slot, []).append(row)
        self.num_rows = len(slots)
        ordered = sorted(groups.items(), key=lambda group: group[1][0])
        self.small = tuple(slot for slot, rows in ordered if len(rows) < LARGE_GROUP)
        self.large = tuple(slot for slot, rows in ordered if len(rows) >= LARGE_GROUP)
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
        """The grid of ``slots``, all of which have rows."""
        found = self._gathers.get(slots)
        if found is None:
            found = self._gathers[slots] = _gather([self._rows[slot] for slot in slots])
        return found


def _gather(groups: list[list[int]]) -> Gather:
    width = max(len(rows) for rows in groups)
    flat = [row for rows in groups for row in rows]
    consecutive = _consecutive(flat)
    if len(flat) == len(groups) * width:
        rows = None if consecutive else torch.tensor(flat)
        return Gather(len(groups), width, flat[0], flat[-1] + 1, rows, None, rows)
    padded = [row for rows in groups for row in rows + [rows[-1]] * (width - len(rows))]
    keep = [group * width + cell for group, rows in enumerate(groups) for cell in range(len(rows))]
    targets = None if consecutive else torch.tensor(flat)
    return Gather(len(groups), width, flat[0], flat[-1] + 1, torch.tensor(padded), torch.tensor(keep), targets)


def _consecutive(rows: list[int]) -> bool:
    return rows[-1] - rows[0] + 1 == len(rows) and all(b - a == 1 for a, b in pairwise(rows))
