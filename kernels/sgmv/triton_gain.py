"""DoRA's gains of one site for :func:`sgmv.triton_pointwise.amplify`."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from sgmv.errors import SgmvArgumentError
from sgmv.gain import Gain, GainRows
from sgmv.slot_table import SlotTable
from sgmv.storage import Storage, sent
from sgmv.triton_pointwise import amplify
from sgmv.triton_site import WEIGHTS, launches

GAIN_BN = 1024
"""Columns of one program: 8 for each thread, 16 bytes of them at a time."""


class TritonGain(Gain):
    """See :class:`sgmv.gain.Gain`. Each slot's gains are their own allocation; a row's slot is read on the device."""

    def __init__(
        self,
        width: int,
        bias: Tensor | None,
        *,
        device: torch.device | str,
        dtype: torch.dtype,
        storage: Storage | None = None,
    ) -> None:
        super().__init__(width, bias, device=device, dtype=dtype, storage=storage)
        self._table = SlotTable(1, self._storage, self.device)
        self._gains: dict[int, Tensor] = {}

    @property
    def num_bytes(self) -> int:
        return sum(gain.nbytes for gain in self._gains.values())

    def clear(self, slot: int) -> None:
        self._held.discard(slot)
        self._table.drop(slot)
        self._gains.pop(slot, None)

    def apply(self, y: Tensor, chosen: GainRows, residual: Tensor | None = None) -> None:
        plan, shape = chosen.plan, (chosen.plan.num_rows, self.width)
        self._check("y", y, shape)
        if residual is not None:
            self._check("residual", residual, shape)
        if not launches(plan, self._storage, bool(self._gains)):
            return
        other = y if residual is None else residual
        bias = y if self._bias is None else self._bias
        given = (y, y.stride(0), other, other.stride(0), bias, plan.on(self.device).slots, self._table.numbers)
        block = min(GAIN_BN, triton.next_power_of_2(self.width))
        amplify[plan.num_rows, triton.cdiv(self.width, block)](
            *given,
            len(self._table),
            WIDTH=self.width,
            WEIGHT=WEIGHTS[self.dtype],
            ADDED=residual is not None,
            BIASED=self._bias is not None,
            BN=block,
        )

    def _put(self, slot: int, excess: Tensor | None) -> None:
        if excess is None:
            self._table.drop(slot)
            self._gains.pop(slot, None)
            return
        own = sent(excess, self.device, self.dtype)
        self._table.put(slot, [own.data_ptr()])
        self._gains[slot] = own

    def _check(self, name: str, tensor: Tensor, shape: tuple[int, int]) -> None:
        if tensor.shape != shape or tensor.dtype is not self.dtype or tensor.device != self.device:
            found = f"{tuple(tensor.shape)}, {tensor.dtype} on {tensor.device}"
            raise SgmvArgumentError(name, f"{found}; expected {shape}, {self.dtype} on {self.device}")
        if tensor.stride(1) != 1 and tensor.numel():
            raise SgmvArgumentError(name, "its last dimension has to be contiguous")
