"""DoRA (Liu et al., 2024): ``W' = m ⊙ (W + s·B A) / ‖W + s·B A‖``, the length taken of each row, once, at load."""

from __future__ import annotations

import torch
from torch import Tensor


def fold_magnitude(
    weight: Tensor, a: Tensor, b: Tensor, scaling: float, magnitude: Tensor
) -> tuple[Tensor, Tensor] | None:
    """``(g ⊙ B, g − 1)`` in float32 with ``g = m / ‖W + s·B A‖``: the rest of DoRA is LoRA and a gain of the output.

    :param weight: the base's, ``[out, in]``. :param a: ``[r, in]``. :param b: ``[out, r]``.
    :param magnitude: ``m``, ``[out]``.
    :returns: ``None`` where a row of ``W + s·B A`` is zero, or too long for a float.
    """
    changed = torch.addmm(weight.float(), b.float(), a.float(), alpha=scaling)
    gain = magnitude.float() / torch.linalg.vector_norm(changed, dim=1)
    return (b.float() * gain[:, None], gain - 1) if gain.isfinite().all() else None
