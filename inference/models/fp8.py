"""Weights held as fp8, products in the type of the activations: half the bytes of 16-bit weights for a step to read."""

from __future__ import annotations

import torch
from torch import Tensor

from fp8_linear import Fp8Weight, LinearArgumentError, product
from inference.errors import ConfigError


class Fp8Linear:
    """A :class:`~inference.models.linear.Linear`: float8_e4m3fn with a scale for each output, see kernels/fp8_linear.

    On the CPU the specification computes, in float32 and slowly, as it widens the whole weight for each product: for
    tests, and to see what rounding costs. There a row's last bits may depend on its batch.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        """:param weight: ``[out, in]``. Raises :class:`ConfigError`: not finite, or there is no kernel for its type."""
        if weight.device.type != "cpu" and weight.dtype == torch.float32:
            raise ConfigError("fp8 weights on CUDA: dtype bfloat16 or float16, not float32")
        self.out_features, self.in_features = weight.shape
        self._bias = bias
        try:
            self._weight = Fp8Weight(weight)
        except LinearArgumentError as error:
            raise ConfigError(f"fp8 weights: {error}") from error

    def __call__(self, x: Tensor) -> Tensor:
        return product(x, self._weight, self._bias)

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        return product(x, self._weight, self._bias, residual)
