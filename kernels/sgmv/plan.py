"""Which rows of a batch belong to which slot: worked out once a step, used by every site of every layer."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from sgmv.errors import SgmvArgumentError

# Rows of one item of work. A few, so that threads share the adapters of a decode step evenly; more where a prompt's
# rows are many anyway, so that an adapter's matrices are read less often.
FEW_ROWS = 4
MOST_ROWS = 16
_LIMIT = 1 << 31
TILE_ROWS = 16
"""Rows of a GPU's tile: what the smallest matrix instruction takes. The same for one row and for thousands, so that a
row's bits do not depend on how many there are.
"""


class DeviceRows(NamedTuple):
    """A plan as GPU kernels read it, int32: tiles are up to :data:`TILE_ROWS` rows of one slot.

    :param tiles: ``[n, 3]``: slot, first place, number of rows; none of them: nothing to do.
    :param rows: ``[T]``: the row at each place. :param slots: ``[T]``: the slot of each row, negative for none.
    """

    tiles: Tensor
    rows: Tensor
    slots: Tensor


class Plan:
    """Rows grouped by slot.

    :param slots: slot of each row; negative for a row without an adapter.
    :ivar slots: those that have rows, each once, ascending.
    :raises SgmvArgumentError: ``slots`` holds something that is not an integer.
    """

    fixed = False
    """Whether the device's numbers have one place for every batch, see :class:`sgmv.fixed_plan.FixedPlan`."""

    def __init__(self, slots: Sequence[int]) -> None:
        self.num_rows = len(slots)
        self._given = slots
        self._groups = grouped(slots)
        self.slots = tuple(sorted(self._groups))
        self._found: dict[torch.device, DeviceRows] = {}

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

    def on(self, device: torch.device) -> DeviceRows:
        """The rows for GPU kernels; copied once, and nobody waits for it."""
        found = self._found.get(device)
        if found is None:
            tiles, rows = self.tiles()
            sizes = [aligned(len(part)) for part in (tiles, rows, self._given)]
            packed = torch.zeros(sum(sizes), dtype=torch.int32, device="cpu", pin_memory=device.type == "cuda")
            views = packed.split_with_sizes(sizes)
            for view, part in zip(views, (tiles, rows, self._given), strict=True):
                view.numpy()[: len(part)] = part
            views = packed.to(device, non_blocking=True).split_with_sizes(sizes)
            found = DeviceRows(views[0][: len(tiles)].view(-1, 3), views[1], views[2])
            self._found[device] = found
        return found

    def tiles(self) -> tuple[list[int], list[int]]:
        """What :attr:`DeviceRows.tiles`, end to end, and :attr:`DeviceRows.rows` hold."""
        tiles: list[int] = []
        rows: list[int] = []
        for slot in self.slots:
            group = self._groups[slot]
            for start in range(0, len(group), TILE_ROWS):
                tiles += (slot, len(rows) + start, min(TILE_ROWS, len(group) - start))
            rows += group
        return tiles, rows

    @cached_property
    def work(self) -> Work:
        return Work(self._groups)


def grouped(slots: Sequence[int]) -> dict[int, list[int]]:
    """Slot → its rows, ascending. Raises :class:`SgmvArgumentError`."""
    groups: dict[int, list[int]] = {}
    for row, slot in enumerate(slots):
        if not isinstance(slot, int):
            raise SgmvArgumentError("slots", f"row {row} is {slot!r}, not an integer")
        if not -_LIMIT <= slot < _LIMIT:
            raise SgmvArgumentError("slots", f"row {row} is {slot}, which 32 bits do not hold")
        if slot >= 0:
            groups.setdefault(slot, []).append(row)
    return groups


def aligned(count: int) -> int:
    """So many int32 that what follows them begins at a multiple of 16 bytes, which kernels are compiled for."""
    return -(-count // 4) * 4


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
