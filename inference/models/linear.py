"""``Linear``: one matrix product, whatever its weight format.

Formats stand here beside each other. How a product is spread over ranks is another axis: a rank's linear is one of
these with fewer outputs, or with fewer inputs and its output summed (:mod:`inference.parallel.summed`).
"""

from __future__ import annotations

from typing import Protocol, cast

import torch
from torch import Tensor

from inference.errors import ConfigError
from inference.models.fp8 import Fp8Linear
from inference.models.int8 import Int8Linear
from inference.models.panels import PanelLinear

# oneDNN lays a weight out for the batch size it is told; this layout measured best, or within 3 % of it, from 1 to
# 512 rows, where a layout for 1 row costs 1.3 times as much at 16.
_PACK_ROWS = 16


class Linear(Protocol):
    in_features: int
    out_features: int

    def __call__(self, x: Tensor) -> Tensor:
        """``[T, in] → [T, out]``, a fresh contiguous tensor that the caller may write to."""
        ...

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        """``residual + self(x)``, a fresh tensor."""
        ...


class DenseLinear:
    """Weights ``[in, out]`` contiguous, for ``torch.mm``. Any device and dtype."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.out_features, self.in_features = weight.shape
        self._weight = weight.t().contiguous()
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        return torch.mm(x, self._weight) if self._bias is None else torch.addmm(self._bias, x, self._weight)

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        return torch.addmm(residual, x, self._weight) if self._bias is None else self(x).add_(residual)


class PackedLinear:
    """fp32 on CPUs for which :class:`PanelLinear` is not made, in oneDNN's own blocked layout: exact fp32.

    All linears of SmolLM2's 30 layers, CPU time on one thread of an EPYC with AVX-512: 16 rows 25 ms against 61 ms of
    ``torch.mm`` on ``[in, out]``, 1 row 14 against 23, 256 rows 236 against 549.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.out_features, self.in_features = weight.shape
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _PACK_ROWS)
        self._bias = bias

    @staticmethod
    def available() -> bool:
        return hasattr(torch.ops.mkldnn, "_reorder_linear_weight")

    def __call__(self, x: Tensor) -> Tensor:
        return cast("Tensor", torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], ""))

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        return cast("Tensor", torch.ops.mkldnn._linear_pointwise.binary(x, residual, self._weight, self._bias, "add"))


def make_linear(weight: Tensor, bias: Tensor | None = None, *, held: str = "full") -> Linear:
    """:param weight: ``[out, in]`` as in a checkpoint, already on its device and in its dtype.
    :param held: ``full``: as it is given; ``int8``: see :class:`Int8Linear`, float32 on the CPU alone; ``fp8``: see
        :class:`Fp8Linear`, 16-bit types on CUDA.
    :raises ConfigError: it cannot be held so.
    """
    if held == "int8":
        if weight.device.type != "cpu" or weight.dtype != torch.float32:
            raise ConfigError(f"int8 weights: float32 on the CPU, not {weight.dtype} on {weight.device.type}")
        return Int8Linear(weight, bias)
    if held == "fp8":
        return Fp8Linear(weight, bias)
    if held != "full":
        raise ConfigError(f"weights {held!r}; full, int8 or fp8")
    if weight.device.type == "cpu" and weight.dtype == torch.float32:
        if PanelLinear.available():
            return PanelLinear(weight, bias)
        if PackedLinear.available():
            return PackedLinear(weight, bias)
    return DenseLinear(weight, bias)
