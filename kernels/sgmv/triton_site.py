"""One site's adapters for :mod:`sgmv.triton_kernels`: a table of addresses on the device, and the launches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from sgmv.errors import SgmvArgumentError
from sgmv.operands import Operands
from sgmv.plan import TILE_ROWS, Plan
from sgmv.slot_table import SlotTable
from sgmv.storage import Storage
from sgmv.torch_site import TorchSite
from sgmv.triton_kernels import ENTRY, expand, shrink
from sgmv.weights import SlotWeights, check_tensors

BM = TILE_ROWS
INTERPRETED = bool(triton.knobs.runtime.interpret)
"""Triton runs the kernels on the CPU, for tests (``TRITON_INTERPRET=1``, set before this is imported)."""
EXPAND_BR = 16
"""Ranks that expand adds at a time; 64 of them fill all registers."""
_PART = 1024
"""Numbers of a row that one program of shrink adds up, so that a few rows keep the whole device at work."""
_MOST_PARTS = 8
WEIGHTS = {
    torch.float32: tl.float32,
    torch.bfloat16: tl.bfloat16,
    torch.float16: tl.float16,
}


@dataclass(frozen=True, slots=True)
class Shape:
    """How a site's products are cut, by its sizes alone.

    :ivar splits: parts of ``K``, ``part`` numbers each but the last. :ivar bk: numbers that a turn of the loop takes.
    :ivar br: ranks that a turn takes at most. With more, or more numbers, float32 and odd widths spill registers.
    :ivar bn: columns of y that one program of expand writes.
    """

    splits: int
    part: int
    bk: int
    br: int
    bn: int

    @classmethod
    def of(cls, in_features: int, slices: Sequence[int], dtype: torch.dtype, *, fp8: bool = False) -> Shape:
        wide = dtype is torch.float32
        bk = min((128 if wide and fp8 else 256) // dtype.itemsize, max(16, triton.next_power_of_2(in_features)))
        splits = min(_MOST_PARTS, -(-in_features // _PART))
        part = -(-in_features // (splits * bk)) * bk
        even = is_even((in_features, *slices))
        bn = min(128, max(16, triton.next_power_of_2(max(slices))))
        br = 16 if not even else 32 if wide else 64
        return cls(-(-in_features // part), part, bk, br, bn)


class TritonSite(TorchSite):
    """See :class:`sgmv.ops.Site`. Each adapter's matrices are one allocation of their own, ranks as they are.

    With a fixed :class:`~sgmv.storage.Storage` and a :class:`~sgmv.fixed_plan.FixedPlan`, :meth:`apply` launches the
    same kernels on the same places each time, whatever is loaded: a graph captured with it serves every batch.
    """

    def __init__(
        self,
        in_features: int,
        slices: Sequence[int],
        device: torch.device,
        dtype: torch.dtype,
        storage: Storage | None = None,
    ) -> None:
        if dtype not in WEIGHTS:
            raise SgmvArgumentError("dtype", f"{dtype}; there are kernels for {', '.join(map(str, WEIGHTS))}")
        super().__init__(in_features, slices, device, dtype, storage)
        self._shape = Shape.of(in_features, slices, dtype, fp8=self.storage.dtype is not None)
        self._table = SlotTable(ENTRY * len(self.slices), self.storage, self.device)
        self._even = is_even(self.slices)
        self._max_rank = 0
        self._fp8 = None if self.storage.dtype is None else fp8_reading(self.device)
        blocks = _column_blocks(self.slices, self._shape.bn)
        self._columns = torch.tensor(blocks, dtype=torch.int32, device=self.device)
        self._widths = torch.tensor(self.slices, dtype=torch.int32, device=self.device)

    def set(self, slot: int, weights: SlotWeights) -> None:
        super().set(slot, weights)
        if slot in self._operands:
            own = self._operands[slot]
            self._max_rank = max(self._max_rank, *own.ranks)
            self._table.put(slot, _entries(own))

    def clear(self, slot: int) -> None:
        self._table.drop(slot)
        super().clear(slot)

    def apply(self, y: Tensor, x: Tensor, plan: Plan) -> None:
        check_tensors(y, x, plan.num_rows, self)
        for name, tensor in (("x", x), ("y", y)):
            if tensor.device != self.device:
                raise SgmvArgumentError(name, f"on {tensor.device}, the site is on {self.device}")
        if not launches(plan, self.storage, bool(self._operands)):
            return
        tiles, rows, _ = plan.on(self.device)
        shape, slices = self._shape, len(self.slices)
        most = self.storage.max_rank or self._max_rank
        # Numbers of h that no rank has are neither written nor read. A fixed plan has room for them all the same, since
        # the largest rank may be loaded before a replay; a prompt of 2,048 rows would need 25 MB for a site of ours.
        stride = -(-(most if plan.fixed else self._max_rank) // 16) * 16
        h = torch.empty(shape.splits, plan.num_rows, slices, stride, dtype=torch.float32, device=self.device)
        table = self._table.numbers
        sizes = (len(table), plan.num_rows, stride)
        common = {
            "SLICES": slices,
            "SPLITS": shape.splits,
            "WEIGHT": WEIGHTS[self.dtype] if self._fp8 is None else tl.uint8,
            "FP8": self._fp8,
            "BM": BM,
            "WIDE": INTERPRETED,
        }
        # by the most that there may be: a row meets the same instructions in a captured step and in another one
        block = min(shape.br, max(16, triton.next_power_of_2(most)))
        given = (h, x, x.stride(0), tiles, rows, table, *sizes, self.in_features)
        shrink[len(tiles), slices * shape.splits](*given, PART=shape.part, BK=shape.bk, BR=block, **common)
        tail = (table, self._columns, self._widths, *sizes)
        expand[len(tiles), len(self._columns)](
            y, y.stride(0), h, tiles, rows, *tail, BN=shape.bn, BR=EXPAND_BR, EVEN=self._even, **common
        )


def launches(plan: Plan, storage: Storage, loaded: bool) -> bool:
    """Whether there is something to launch: for a fixed plan always, since what is loaded may change before a replay.

    :raises SgmvArgumentError: a fixed plan for a site whose tables may move.
    """
    if not plan.fixed:
        return loaded and plan.active
    if not storage.fixed:
        raise SgmvArgumentError("plan", "a fixed one needs a site with storage of fixed slots and max_rank")
    return True


def fp8_reading(device: torch.device) -> str:
    """For :func:`sgmv.triton_kernels.as_kind`; ``bits`` on NVIDIA before sm_89, where Triton cannot convert e4m3fn."""
    if torch.version.hip is not None:
        return "native"
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < (8, 9):
        return "bits"
    return "halves"


def _entries(own: Operands) -> list[int]:
    """A slot's row of the table, see :data:`sgmv.triton_kernels.ENTRY`."""
    row: list[int] = []
    for a, b, factors, rank, scaling in zip(own.a, own.b, own.factors, own.ranks, own.scaling, strict=True):
        addresses = [0 if tensor is None else tensor.data_ptr() for tensor in (a, b)]
        bits = int(np.float32(scaling).view(np.int32))
        row += [*addresses, rank, bits, 0 if factors is None else factors.data_ptr(), 0, 0, 0]
    return row


def is_even(slices: Sequence[int]) -> bool:
    """Whether whole vectors may be loaded of every slice's columns."""
    return all(width % 16 == 0 for width in slices)


def _column_blocks(slices: Sequence[int], width: int) -> list[tuple[int, int, int]]:
    """(slice, first column of it, where the slice begins) for every ``width`` columns."""
    found, begin = [], 0
    for index, columns in enumerate(slices):
        found += [(index, first, begin) for first in range(0, columns, width)]
        begin += columns
    return found
