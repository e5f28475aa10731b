"""The CPU path: adapters with few rows share one batched product, adapters with many have their own pair.

Decode on a CPU reads every active adapter once and computes next to nothing, so what counts is the number of torch
calls and not to read anything twice. ``torch.bmm`` (MKL's batched gemm) over operands that lie side by side needs one
call to shrink and one a slice to expand, whatever the number of adapters. See README.md for the measurements.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sgmv.errors import SgmvArgumentError
from sgmv.plan import Gather, Plan
from sgmv.pool import Pool
from sgmv.weights import SlotWeights, check_weights

# Ranks are rounded up to one of these, so that adapters of like rank share a product.
_RANK_CLASSES = (8, 16, 32, 64, 128, 256)


class CpuSite:
    """One site's adapters. See :class:`sgmv.ops.Site` for the contract."""

    def __init__(self, in_features: int, slices: Sequence[int], dtype: torch.dtype) -> None:
        self.in_features = in_features
        self.slices = tuple(slices)
        self.dtype = dtype
        self._width = sum(self.slices)
        self._pools: dict[int, Pool] = {}

    @property
    def order(self) -> tuple[int, ...]:
        return tuple(slot for pool in self._pools.values() for slot in pool.order)

    @property
    def num_bytes(self) -> int:
        return sum(pool.num_bytes for pool in self._pools.values())

    def set(self, slot: int, weights: SlotWeights) -> None:
        check_weights(weights, self.in_features, self.slices)
        self.clear(slot)
        if not any(weights.ranks):
            return
        rank = _rank_class(max(weights.ranks))
        if rank not in self._pools:
            self._pools[rank] = Pool(rank, self.in_features, self.slices, self.dtype)
        self._pools[rank].add(slot, weights)

    def clear(self, slot: int) -> None:
        for rank, pool in self._pools.items():
            if slot in pool:
                pool.remove(slot)
                if not len(pool):
                    del self._pools[rank]
                return

    def apply(self, y: Tensor, x: Tensor, plan: Plan) -> None:
        self._check(y, x, plan)
        for pool in self._pools.values():
            if plan.small:
                slots = pool.front(plan.small)
                if slots:
                    self._batched(y, x, pool, plan.gather(slots))
            for slot in plan.large:
                if slot in pool:
                    self._single(y, x, pool, slot, plan)

    def _check(self, y: Tensor, x: Tensor, plan: Plan) -> None:
        if x.shape != (plan.num_rows, self.in_features):
            raise SgmvArgumentError("x", f"shape {tuple(x.shape)}, expected {(plan.num_rows, self.in_features)}")
        if y.shape != (plan.num_rows, self._width):
            raise SgmvArgumentError("y", f"shape {tuple(y.shape)}, expected {(plan.num_rows, self._width)}")
        if x.dtype != self.dtype or y.dtype != self.dtype:
            raise SgmvArgumentError("x" if x.dtype != self.dtype else "y", f"has to be {self.dtype}")

    def _batched(self, y: Tensor, x: Tensor, pool: Pool, gather: Gather) -> None:
        grid = x[gather.start : gather.stop] if gather.rows is None else x.index_select(0, gather.rows)
        grid = grid.view(gather.groups, gather.width, self.in_features)
        shrunk = torch.bmm(pool.a, grid.transpose(1, 2))
        out = y if gather.targets is not None or gather.whole else y[gather.start : gather.stop]
        if len(self.slices) == 1:
            self._expand(out, shrunk, pool.b[0], gather)
            return
        # split_with_sizes: Tensor.split goes through Python, 5 µs a call
        owns = shrunk.split_with_sizes([pool.rank] * len(self.slices), 1)
        for own, part, expand in zip(owns, out.split_with_sizes(self.slices, 1), pool.b, strict=True):
            self._expand(part, own, expand, gather)

    @staticmethod
    def _expand(out: Tensor, shrunk: Tensor, expand: Tensor | None, gather: Gather) -> None:
        """:param out: the batch's rows of one slice, or where there are ``targets`` all rows of it."""
        if expand is None:
            return
        delta = torch.bmm(shrunk.transpose(1, 2), expand).view(-1, expand.shape[2])
        if gather.cells is not None:
            delta = delta.index_select(0, gather.cells)
        if gather.targets is None:
            out.add_(delta)
        else:
            out.index_add_(0, gather.targets, delta)

    def _single(self, y: Tensor, x: Tensor, pool: Pool, slot: int, plan: Plan) -> None:
        span = plan.span(slot)
        rows = x[span[0] : span[1]] if isinstance(span, tuple) else x.index_select(0, span)
        a, b = pool.single(slot)
        shrunk = torch.mm(rows, a.t())
        owns = shrunk.split_with_sizes([pool.rank] * len(self.slices), 1)
        for own, part, expand in zip(owns, y.split_with_sizes(self.slices, 1), b, strict=True):
            if expand is None:
                continue
            if isinstance(span, tuple):
                part[span[0] : span[1]].addmm_(own, expand)
            else:
                part.index_add_(0, span, torch.mm(own, expand))


def _rank_class(rank: int) -> int:
    return next((size for size in _RANK_CLASSES if rank <= size), rank)
