"""Rotary position embedding (Su et al., RoFormer), in the half-split order of Hugging Face checkpoints."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from inference.model_config import ModelConfig


class Rope:
    """Tables of ``cos`` and signed ``sin``, ``[positions, D]``.

    :meth:`rotate` computes ``x·cos + roll(x, D/2)·sin`` where the first half of ``sin`` is negated: the textbook
    ``x·cos + rotate_half(x)·sin`` in three calls.
    """

    def __init__(self, config: ModelConfig, positions: int, *, device: torch.device, dtype: torch.dtype) -> None:
        angles = torch.arange(positions).float()[:, None] * _frequencies(config)[None, :]
        self._half = config.head_dim // 2
        self._cos = torch.cat([angles.cos(), angles.cos()], dim=1).to(device=device, dtype=dtype)
        self._sin = torch.cat([-angles.sin(), angles.sin()], dim=1).to(device=device, dtype=dtype)

    def at(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """``[T] → [T, 1, D]`` each; once a step, for all layers."""
        return self._cos.index_select(0, positions).unsqueeze(1), self._sin.index_select(0, positions).unsqueeze(1)

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """:param x: ``[T, heads, D]``."""
        return torch.addcmul(x * cos, x.roll(self._half, -1), sin)


def _frequencies(config: ModelConfig) -> Tensor:
    base = 1.0 / config.rope_theta ** (torch.arange(0, config.head_dim, 2).float() / config.head_dim)
    scaling = config.rope_scaling
    if scaling is None:
        return base
    wavelength = 2 * math.pi / base
    smooth = (scaling.original_context / wavelength - scaling.low_freq_factor) / (
        scaling.high_freq_factor - scaling.low_freq_factor
    )
    smooth = smooth.clamp(0, 1)
    return (1 - smooth) * base / scaling.factor + smooth * base
