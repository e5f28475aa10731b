"""A linear and its adapters as one: what the decoder calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from inference.models.linear import Linear
from inference.models.lora import AdaptedSite, AdapterStep


class AdaptedLinear(Protocol):
    def __call__(self, x: Tensor, step: AdapterStep | None) -> Tensor:
        """``[T, in] → [T, out]``, a fresh contiguous tensor. :param step: ``None`` where no row has an adapter."""
        ...

    def add(self, x: Tensor, residual: Tensor, step: AdapterStep | None) -> Tensor:
        """``residual + self(x)``, a fresh tensor."""
        ...


@dataclass(frozen=True, slots=True)
class Adapted:
    """:param linear: the base model's. :param site: the adapters', which act on its output."""

    linear: Linear
    site: AdaptedSite

    def __call__(self, x: Tensor, step: AdapterStep | None) -> Tensor:
        y = self.linear(x)
        if step is not None:
            self.site.apply(y, x, step)
        return y

    def add(self, x: Tensor, residual: Tensor, step: AdapterStep | None) -> Tensor:
        y = self.linear.add(x, residual)
        if step is not None:
            self.site.apply(y, x, step, residual)
        return y
