"""A plan whose numbers lie in one place of one size, whatever the mix of adapters: what a captured graph reads."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sgmv.errors import SgmvArgumentError
from sgmv.plan import DeviceRows, Plan, aligned, grouped
from sgmv.step_numbers import Ints


class FixedPlan(Plan):
    """A :class:`~sgmv.plan.Plan` of batches of at most ``num_rows`` rows, to be filled before each of them.

    There is a tile for each row; those that a batch does not need have no rows, and kernels return from them at once.
    Sites launch the same kernels on the same places for every batch, also where no row has an adapter: they need a
    :class:`~sgmv.storage.Storage` of fixed size.

    :param numbers: ``[size(num_rows)]`` int32 on the device, a part of :class:`~sgmv.step_numbers.StepNumbers`.
    """

    fixed = True

    @staticmethod
    def size(num_rows: int) -> int:
        return aligned(3 * num_rows) + 2 * aligned(num_rows)

    def __init__(self, num_rows: int, numbers: Tensor) -> None:
        if num_rows < 1:
            raise SgmvArgumentError("num_rows", f"{num_rows} has to be at least 1")
        if numbers.shape != (self.size(num_rows),) or numbers.dtype is not torch.int32:
            message = f"{tuple(numbers.shape)}, {numbers.dtype}; expected {(self.size(num_rows),)}, int32"
            raise SgmvArgumentError("numbers", message)
        super().__init__([])
        self.num_rows = num_rows
        self._sizes = [aligned(3 * num_rows), aligned(num_rows), aligned(num_rows)]
        tiles, rows, slots = numbers.split_with_sizes(self._sizes)
        self._device = numbers.device
        self._places = DeviceRows(tiles[: 3 * num_rows].view(-1, 3), rows[:num_rows], slots[:num_rows])

    def fill(self, slots: Sequence[int], host: Ints) -> None:
        """Lay out one batch.

        :param slots: of each row, at most ``num_rows``; rows beyond them have no adapter.
        :param host: the part of :meth:`~sgmv.step_numbers.StepNumbers.begin`, to be copied afterwards.
        :raises SgmvArgumentError: and nothing is changed.
        """
        if len(slots) > self.num_rows:
            raise SgmvArgumentError("slots", f"{len(slots)} rows, the plan has room for {self.num_rows}")
        if len(host) != sum(self._sizes):
            raise SgmvArgumentError("host", f"{len(host)} numbers, expected {sum(self._sizes)}")
        self._groups = grouped(slots)
        self.slots = tuple(sorted(self._groups))
        self.__dict__.pop("work", None)
        tiles, rows = self.tiles()
        second, third = self._sizes[0], self._sizes[0] + self._sizes[1]
        host[: len(tiles)] = tiles
        host[len(tiles) : second] = 0
        host[second : second + len(rows)] = rows
        host[second + len(rows) : third] = 0
        host[third : third + len(slots)] = slots
        host[third + len(slots) :] = -1

    def on(self, device: torch.device) -> DeviceRows:
        """The same places each time. :raises SgmvArgumentError: ``device`` is another than theirs."""
        if device != self._device:
            raise SgmvArgumentError("plan", f"its numbers are on {self._device}, the site is on {device}")
        return self._places
