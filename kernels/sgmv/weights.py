"""One adapter's matrices at one site: a site is a fused linear (qkv, gate_up) or a plain one (o, down)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from sgmv.errors import SgmvArgumentError


@dataclass(frozen=True, slots=True)
class SlotWeights:
    """:param a: per slice, ``[r, in]`` or ``None`` where the adapter leaves the slice alone. Ranks may differ.
    :param b: per slice, ``[out, r]`` or ``None``, exactly where ``a`` is.
    :param scaling: per slice.
    """

    a: tuple[Tensor | None, ...]
    b: tuple[Tensor | None, ...]
    scaling: tuple[float, ...]

    @property
    def ranks(self) -> tuple[int, ...]:
        """0 for a slice that is missing."""
        return tuple(0 if a is None else a.shape[0] for a in self.a)


def check_weights(weights: SlotWeights, in_features: int, slices: Sequence[int]) -> None:
    """Raises :class:`SgmvArgumentError` unless ``weights`` fit a site of these sizes."""
    for name, value in (("a", weights.a), ("b", weights.b), ("scaling", weights.scaling)):
        if len(value) != len(slices):
            raise SgmvArgumentError(f"weights.{name}", f"{len(value)} slices, the site has {len(slices)}")
    for index, (a, b, out) in enumerate(zip(weights.a, weights.b, slices, strict=True)):
        if (a is None) != (b is None):
            raise SgmvArgumentError(f"weights.b[{index}]", "a slice needs both matrices or neither")
        if a is None or b is None:
            continue
        if a.ndim != 2 or a.shape[1] != in_features:
            raise SgmvArgumentError(f"weights.a[{index}]", f"shape {tuple(a.shape)}, expected (r, {in_features})")
        if tuple(b.shape) != (out, a.shape[0]):
            raise SgmvArgumentError(f"weights.b[{index}]", f"shape {tuple(b.shape)}, expected {(out, a.shape[0])}")
        if a.dtype != b.dtype or a.device != b.device:
            raise SgmvArgumentError(f"weights.b[{index}]", "a and b differ in dtype or device")


class Shaped(Protocol):
    """What a site fixes about the tensors it is given. :ivar width: of all slices together."""

    in_features: int
    width: int
    dtype: torch.dtype


def check_tensors(y: Tensor, x: Tensor, num_rows: int, site: Shaped) -> None:
    """Raises :class:`SgmvArgumentError` unless ``y`` and ``x`` fit the site and a plan of so many rows."""
    _check("x", x, (num_rows, site.in_features), site.dtype)
    _check("y", y, (num_rows, site.width), site.dtype)


def _check(name: str, tensor: Tensor, shape: tuple[int, int], dtype: torch.dtype) -> None:
    if tensor.shape != shape:
        raise SgmvArgumentError(name, f"shape {tuple(tensor.shape)}, expected {shape}")
    if tensor.dtype is not dtype:
        raise SgmvArgumentError(name, f"has to be {dtype}, not {tensor.dtype}")
    if tensor.stride(1) != 1 and shape[0]:
        raise SgmvArgumentError(name, "its last dimension has to be contiguous")
