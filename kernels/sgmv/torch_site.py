"""Any device and dtype: a pair of torch products per adapter and slice. Simple, and slow where adapters are many."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sgmv.operands import Operands, check_held
from sgmv.plan import Plan
from sgmv.storage import Storage, actual
from sgmv.weights import SlotWeights, check_tensors, check_weights


class TorchSite:
    """One site's adapters. See :class:`sgmv.ops.Site` for the contract."""

    def __init__(
        self,
        in_features: int,
        slices: Sequence[int],
        device: torch.device,
        dtype: torch.dtype,
        storage: Storage | None = None,
    ) -> None:
        self.in_features = in_features
        self.slices = tuple(slices)
        self.width = sum(slices)
        self.device, self.dtype = actual(device), dtype
        self.storage = storage or Storage()
        self.held = self.storage.dtype or dtype
        self._operands: dict[int, Operands] = {}

    @property
    def order(self) -> tuple[int, ...]:
        return tuple(sorted(self._operands))

    @property
    def num_bytes(self) -> int:
        return sum(operands.num_bytes for operands in self._operands.values())

    def set(self, slot: int, weights: SlotWeights) -> None:
        check_weights(weights, self.in_features, self.slices)
        check_held(weights, self.held)
        self.storage.check(slot, weights.ranks)
        self.clear(slot)
        if any(weights.ranks):
            self._operands[slot] = Operands(weights, device=self.device, dtype=self.held)

    def clear(self, slot: int) -> None:
        self._operands.pop(slot, None)

    def apply(self, y: Tensor, x: Tensor, plan: Plan) -> None:
        check_tensors(y, x, plan.num_rows, self)
        for slot in plan.slots:
            operands = self._operands.get(slot)
            if operands is not None:
                self._add(y, x, plan.span(slot), operands)

    def _add(self, y: Tensor, x: Tensor, span: slice | list[int], operands: Operands) -> None:
        index = span if isinstance(span, slice) else torch.tensor(span, device=self.device)
        rows = x[index]
        parts = y.split_with_sizes(self.slices, 1)
        held = zip(operands.a, operands.b, operands.factors, operands.scaling, strict=True)
        for part, (a, b, factors, scaling) in zip(parts, held, strict=True):
            if a is None or b is None:
                continue
            shrunk = torch.mm(rows, a.t().to(self.dtype))
            if factors is None:
                shrunk.mul_(scaling)
            else:
                shrunk.mul_(factors)
            alpha = 1.0 if factors is None else scaling  # small, for the large numbers of an fp8 matrix: float16 ends
            if isinstance(index, slice):
                part[index].addmm_(shrunk, b.to(self.dtype), alpha=alpha)
            else:
                own = part.index_select(0, index)
                part.index_copy_(0, index, own.addmm_(shrunk, b.to(self.dtype), alpha=alpha))
