"""The CPU path: adapters with few rows share one batched product, adapters with many have their own pair.

Decode on a CPU reads every active adapter once and computes next to nothing, so what counts is the number of torch
calls and not to read anything twice. ``torch.bmm`` (MKL's batched gemm) over operands packed ``[groups, in, r]`` needs
one call to shrink and one a slice to expand, whatever the number of adapters. See README.md for the measurements.

The packed operands are kept while the set of slots in the batch stays the same; rows may come, go and move meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sgmv.errors import SgmvArgumentError
from sgmv.plan import Gather, Plan
from sgmv.weights import SlotWeights, check_weights

# Ranks are rounded up to one of these inside a packed operand, so that adapters of like rank share a product.
_RANK_CLASSES = (8, 16, 32, 64, 128, 256)


@dataclass(frozen=True, slots=True)
class _Slot:
    """True-rank operands: ``a`` ``[in, Σr]`` with the slices side by side, ``b`` ``[r, out]`` scaled, per slice."""

    ranks: tuple[int, ...]
    a: Tensor
    b: tuple[Tensor | None, ...]


@dataclass(frozen=True, slots=True)
class _Packed:
    """Slots of one rank class. ``a`` ``[groups, in, slices·rank]``; ``b`` per slice ``[groups, rank, out]``."""

    slots: tuple[int, ...]
    rank: int
    a: Tensor
    b: tuple[Tensor | None, ...]


class CpuSite:
    """One site's adapters. See :class:`sgmv.ops.Site` for the contract."""

    def __init__(self, in_features: int, slices: Sequence[int], dtype: torch.dtype) -> None:
        self.in_features = in_features
        self.slices = tuple(slices)
        self.dtype = dtype
        self._offsets = tuple(sum(self.slices[:index]) for index in range(len(self.slices)))
        self._width = sum(self.slices)
        self._slots: dict[int, _Slot] = {}
        self._packed: list[_Packed] = []
        self._packed_for: tuple[int, ...] = ()

    def set(self, slot: int, weights: SlotWeights) -> None:
        check_weights(weights, self.in_features, self.slices)
        self.clear(slot)
        present = [a for a in weights.a if a is not None]
        if not present:
            return
        a = torch.cat(present).t().to(self.dtype).contiguous()
        b = tuple(
            None if matrix is None else (matrix.to(self.dtype) * scaling).t().contiguous()
            for matrix, scaling in zip(weights.b, weights.scaling, strict=True)
        )
        self._slots[slot] = _Slot(weights.ranks, a, b)

    def clear(self, slot: int) -> None:
        self._slots.pop(slot, None)
        if slot in self._packed_for:
            self._packed, self._packed_for = [], ()

    def apply(self, y: Tensor, x: Tensor, plan: Plan) -> None:
        self._check(y, x, plan)
        if plan.small:
            if plan.small != self._packed_for:
                self._pack(plan.small)
            for packed in self._packed:
                self._batched(y, x, packed, plan.gather(packed.slots))
        for slot in plan.large:
            if slot in self._slots:
                self._single(y, x, self._slots[slot], plan.span(slot))

    def _check(self, y: Tensor, x: Tensor, plan: Plan) -> None:
        if x.shape != (plan.num_rows, self.in_features):
            raise SgmvArgumentError("x", f"shape {tuple(x.shape)}, expected {(plan.num_rows, self.in_features)}")
        if y.shape != (plan.num_rows, self._width):
            raise SgmvArgumentError("y", f"shape {tuple(y.shape)}, expected {(plan.num_rows, self._width)}")
        if x.dtype != self.dtype or y.dtype != self.dtype:
            raise SgmvArgumentError("x" if x.dtype != self.dtype else "y", f"has to be {self.dtype}")

    def _pack(self, slots: tuple[int, ...]) -> None:
        classes: dict[int, list[int]] = {}
        for slot in slots:
            if slot in self._slots:
                classes.setdefault(_rank_class(max(self._slots[slot].ranks)), []).append(slot)
        self._packed = [self._pack_class(rank, tuple(members)) for rank, members in classes.items()]
        self._packed_for = slots

    def _pack_class(self, rank: int, members: tuple[int, ...]) -> _Packed:
        """Missing ranks are zeros of the adapter's own block: they meet only its own rows, and add exactly nothing."""
        slots = [self._slots[member] for member in members]
        a = torch.zeros(len(slots), self.in_features, rank * len(self.slices), dtype=self.dtype)
        b: list[Tensor | None] = []
        for index, width in enumerate(self.slices):
            expand = None
            for group, slot in enumerate(slots):
                own, matrix = slot.ranks[index], slot.b[index]
                if matrix is None:
                    continue
                if expand is None:
                    expand = torch.zeros(len(slots), rank, width, dtype=self.dtype)
                first = sum(slot.ranks[:index])
                a[group, :, index * rank : index * rank + own] = slot.a[:, first : first + own]
                expand[group, :own] = matrix
            b.append(expand)
        return _Packed(members, rank, a, tuple(b))

    def _batched(self, y: Tensor, x: Tensor, packed: _Packed, gather: Gather) -> None:
        grid = x[gather.start : gather.stop] if gather.rows is None else x.index_select(0, gather.rows)
        shrunk = torch.bmm(grid.view(gather.groups, gather.width, self.in_features), packed.a)
        for index, (offset, width, expand) in enumerate(zip(self._offsets, self.slices, packed.b, strict=True)):
            if expand is None:
                continue
            own = shrunk[:, :, index * packed.rank : (index + 1) * packed.rank]
            delta = torch.bmm(own, expand).view(-1, width)
            if gather.keep is not None:
                delta = delta.index_select(0, gather.keep)
            out = y if len(self.slices) == 1 else y[:, offset : offset + width]
            if gather.targets is None:
                out[gather.start : gather.stop].add_(delta)
            else:
                out.index_add_(0, gather.targets, delta)

    def _single(self, y: Tensor, x: Tensor, slot: _Slot, span: tuple[int, int] | Tensor) -> None:
        rows = x[span[0] : span[1]] if isinstance(span, tuple) else x.index_select(0, span)
        shrunk = torch.mm(rows, slot.a)
        first = 0
        for offset, width, rank, expand in zip(self._offsets, self.slices, slot.ranks, slot.b, strict=True):
            if expand is not None:
                own = shrunk[:, first : first + rank]
                if isinstance(span, tuple):
                    y[span[0] : span[1], offset : offset + width].addmm_(own, expand)
                else:
                    y[:, offset : offset + width].index_add_(0, span, torch.mm(own, expand))
            first += rank


def _rank_class(rank: int) -> int:
    return next((size for size in _RANK_CLASSES if rank <= size), rank)
