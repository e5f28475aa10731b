"""The specification."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from sgmv.weights import SlotWeights


def sgmv_naive(
    y: Tensor, x: Tensor, slots: Sequence[int], weights: Mapping[int, SlotWeights], slices: Sequence[int]
) -> None:
    """``y[t] += scaling[s] · B[s] (A[s] x[t])`` with ``s = slots[t]``, per slice, in place.

    :param y: ``[T, sum(slices)]``. A row with a negative slot, or a slot without weights, is not touched.
    :param x: ``[T, in]``.
    """
    for row, slot in enumerate(slots):
        if slot < 0 or slot not in weights:
            continue
        start, own = 0, weights[slot]
        for a, b, scaling, width in zip(own.a, own.b, own.scaling, slices, strict=True):
            if a is not None and b is not None:
                y[row, start : start + width] += scaling * ((x[row] @ a.T) @ b.T)
            start += width
