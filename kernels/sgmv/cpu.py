"""fp32 on the CPU: one compiled loop does all adapters of a site in one call. See README.md for the measurements."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cpujit import num_threads, run, scratch
from sgmv import compiled
from sgmv.errors import SgmvArgumentError
from sgmv.operands import Operands
from sgmv.plan import MOST_ROWS, Plan
from sgmv.storage import Storage
from sgmv.torch_site import TorchSite
from sgmv.weights import SlotWeights, check_tensors

_CALL = struct.Struct(f"{compiled.INPUTS}q")


class CpuSite(TorchSite):
    """One site's adapters with their true ranks; a table tells the loop where they lie. See :class:`sgmv.ops.Site`."""

    def __init__(
        self,
        in_features: int,
        slices: Sequence[int],
        device: torch.device,
        dtype: torch.dtype,
        storage: Storage | None = None,
    ) -> None:
        super().__init__(in_features, slices, device, dtype, storage)
        if self.storage.dtype is not None:
            raise SgmvArgumentError("storage.dtype", f"{self.storage.dtype}; the CPU's loop reads float32 alone")
        self._loop = compiled.SGMV.address
        self._widths = np.array(self.slices, np.int64)
        self._arguments = np.zeros(compiled.NUM_ARGUMENTS, np.int64)
        self._call: Any = self._arguments.data
        self._address = int(self._arguments.ctypes.data)
        self._arguments[compiled.INPUTS] = in_features
        self._arguments[compiled.SLICES] = self._widths.ctypes.data
        self._arguments[compiled.NUM_SLICES] = len(self.slices)
        self._table = np.zeros((0, len(self.slices), 3), np.int64)
        self._scaling = np.zeros((0, len(self.slices)), np.float32)
        self._max_rank = 0

    def set(self, slot: int, weights: SlotWeights) -> None:
        super().set(slot, weights)
        if slot in self._operands:
            if slot >= len(self._table):
                self._resize(slot + 1)
            self._enter(slot, self._operands[slot])

    def clear(self, slot: int) -> None:
        super().clear(slot)
        if slot < len(self._table):
            self._table[slot] = 0

    def apply(self, y: Tensor, x: Tensor, plan: Plan) -> None:
        check_tensors(y, x, plan.num_rows, self)
        if not self._operands or not plan.active:
            return
        work = plan.work
        threads = min(num_threads(), work.count * len(self.slices))
        tensors = (y.data_ptr(), y.stride(0), x.data_ptr(), x.stride(0))
        places = scratch(4 * MOST_ROWS * self._max_rank, threads)
        _CALL.pack_into(self._call, 0, 0, *tensors, work.items, work.count, work.rows, places)
        run(self._loop, self._address, threads)

    def _enter(self, slot: int, operands: Operands) -> None:
        for index, (a, b, scaling) in enumerate(zip(operands.a, operands.b, operands.scaling, strict=True)):
            if a is not None and b is not None:
                self._table[slot, index] = a.data_ptr(), b.data_ptr(), len(a)
                self._scaling[slot, index] = scaling
        self._max_rank = int(self._table[:, :, 2].max())
        self._arguments[compiled.MAX_RANK] = self._max_rank

    def _resize(self, slots: int) -> None:
        table = np.zeros((slots, len(self.slices), 3), np.int64)
        scaling = np.zeros((slots, len(self.slices)), np.float32)
        table[: len(self._table)], scaling[: len(self._table)] = self._table, self._scaling
        self._table, self._scaling = table, scaling
        self._arguments[compiled.TABLE] = table.ctypes.data
        self._arguments[compiled.SCALING] = scaling.ctypes.data
        self._arguments[compiled.NUM_SLOTS] = slots
