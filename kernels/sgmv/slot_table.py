"""What kernels read of each slot: a row of 64-bit numbers on the device."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from sgmv.storage import Storage

_FIRST = 16
"""Slots to begin with where no number is fixed."""


class SlotTable:
    """Addresses, ranks and factors by slot; a row of zeros is an empty slot.

    Changes are copies in the order of the device's stream, one a row: what was launched before sees the row as it was,
    what is launched afterwards, a replayed graph too, as it is.

    :param width: numbers of a row.
    :param storage: with a number of slots :attr:`numbers` never moves. Without, it grows, which a captured graph
        would not see.
    """

    def __init__(self, width: int, storage: Storage, device: torch.device) -> None:
        self._device = device
        self._filled: set[int] = set()
        self.numbers = torch.zeros(storage.slots or _FIRST, width, dtype=torch.int64, device=device)

    def __len__(self) -> int:
        return len(self.numbers)

    def put(self, slot: int, row: Sequence[int]) -> None:
        """:param slot: checked by :meth:`sgmv.storage.Storage.check`."""
        if slot >= len(self):
            grown = self.numbers.new_zeros(max(slot + 1, 2 * len(self)), self.numbers.shape[1])
            grown[: len(self)] = self.numbers
            self.numbers = grown
        self._filled.add(slot)
        # From pinned memory nobody waits for the copy; torch keeps that memory until it is done.
        given = torch.tensor(row, dtype=torch.int64, device="cpu", pin_memory=self._device.type == "cuda")
        self.numbers[slot].copy_(given, non_blocking=True)

    def drop(self, slot: int) -> None:
        """Nothing is launched for a slot that is empty: one load clears each of several hundred tables twice."""
        if slot in self._filled:
            self.numbers[slot].zero_()
            self._filled.discard(slot)
