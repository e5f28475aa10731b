"""Which rows of a batch belong to which slot: worked out once a step, used by every site of every layer."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from sgmv.errors import SgmvArgumentError

# Rows of one item of work. A few, so that threads share the adapters of a decode step evenly; more where a prompt's
# rows are many anyway, so that an adapter's matrices are read less often.
FEW_ROWS = 4
MOST_ROWS = 16


class Plan:
    """Rows grouped by slot.

    :param slots: slot of each row; negative for a row without an adapter.
    :ivar slots: those that have rows, each once, ascending.
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
        self.slots = tuple(sorted(groups))
        self._groups = groups

    @property
    def active(self) -> bool:
        return bool(self._groups)

    def rows(self, slot: int) -> list[int]:
        """Rows of one of ``slots``, ascending; not to be changed."""
        return self._groups[slot]

    def span(self, slot: int) -> slice | list[int]:
        """The same: a slice where they are consecutive, their numbers otherwise."""
        rows = self._groups[slot]
        return slice(rows[0], rows[-1] + 1) if rows[-1] - rows[0] == len(rows) - 1 else rows

    @cached_property
    def work(self) -> Work:
        return Work(self._groups)


class Work:
    """The rows as items of at most :data:`MOST_ROWS` rows of one slot, which threads take one by one, large ones first.

    :ivar items: address of ``[count, 3]`` int64: slot, first place in ``rows``, number of rows.
    :ivar rows: address of int64 row numbers, grouped by slot.
    """

    def __init__(self, groups: dict[int, list[int]]) -> None:
        items: list[tuple[int, int, int]] = []
        rows: list[int] = []
        for slot, group in groups.items():
            step = FEW_ROWS if len(group) < FEW_ROWS * MOST_ROWS else MOST_ROWS
            items.extend(
                (slot, len(rows) + start, min(step, len(group) - start)) for start in range(0, len(group), step)
            )
            rows.extend(group)
        items.sort(key=lambda item: -item[2])
        self.count = len(items)
        self._held: list[Any] = [np.array(items, np.int64), np.array(rows, np.int64)]
        self.items, self.rows = (int(array.ctypes.data) for array in self._held)
