"""Random adapters of a case, and what they add, in float64."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from kernel_shapes import Case, Site
from torch import Tensor

from sgmv import SlotWeights

SCALING = 2.0
"""Not 1, so that a column that forgets it is found out."""
TOLERANCE = {torch.bfloat16: 2e-2, torch.float16: 3e-3, torch.float32: 1e-5}
"""Of the delta's largest number: what rounding the product of A and the sum to the type costs."""


@dataclass(frozen=True, slots=True)
class Adapters:
    """Those of one batch, all of one rank, as most serving systems keep them.

    :param a: ``[n, slices · r, K]``. :param b: ``[n, Σ out, r]``.
    """

    site: Site
    rank: int
    a: Tensor
    b: Tensor

    @classmethod
    def random(cls, case: Case, count: int, device: torch.device, dtype: torch.dtype) -> Adapters:
        """``count`` of them. Signed, scaled by 1/√K and 1/√r: the delta's numbers are about as large as x's."""
        generator = torch.Generator(device=device).manual_seed(case.rank)
        options = {"generator": generator, "device": device, "dtype": dtype}
        site, rank = case.site, case.rank
        a = torch.randn(count, len(site.slices) * rank, site.inputs, **options).div_(math.sqrt(site.inputs))
        b = torch.randn(count, site.width, rank, **options).div_(math.sqrt(rank))
        return cls(site, rank, a, b)

    def __len__(self) -> int:
        return len(self.a)

    @property
    def columns(self) -> list[slice]:
        """Of y, and rows of ``b``: each slice's."""
        ends = [0, *accumulate(self.site.slices)]
        return [slice(start, stop) for start, stop in pairwise(ends)]

    @property
    def ranks(self) -> list[slice]:
        """Rows of ``a``: each slice's."""
        return [slice(index * self.rank, (index + 1) * self.rank) for index in range(len(self.site.slices))]

    def part(self, first: int, count: int) -> Adapters:
        return Adapters(self.site, self.rank, self.a[first : first + count], self.b[first : first + count])

    def slot_weights(self, slot: int) -> SlotWeights:
        return SlotWeights(
            tuple(self.a[slot, rows] for rows in self.ranks),
            tuple(self.b[slot, columns] for columns in self.columns),
            (SCALING,) * len(self.site.slices),
        )

    def delta(self, x: Tensor, slots: Sequence[int]) -> Tensor:
        """``[T, Σ out]``, float64. :param slots: of the rows, in order."""
        found = torch.zeros(len(slots), self.site.width, dtype=torch.float64, device=x.device)
        rows = torch.tensor(slots)
        wide = x.double()
        for slot in rows.unique().tolist():
            first, last = (rows == slot).nonzero()[[0, -1], 0].tolist()
            own = slice(first, last + 1)
            shrunk = wide[own] @ self.a[slot].double().t()
            for ranks, columns in zip(self.ranks, self.columns, strict=True):
                found[own, columns] = SCALING * (shrunk[:, ranks] @ self.b[slot, columns].double().t())
        return found


def error(found: Tensor, expected: Tensor) -> float:
    """The largest difference, as a part of the largest expected number; infinite where anything is not finite."""
    if not found.isfinite().all():
        return math.inf
    return float((found.double() - expected).abs().max() / expected.abs().max())
