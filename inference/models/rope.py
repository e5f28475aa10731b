"""Rotary position embedding (Su et al., RoFormer), in the half-split order of Hugging Face checkpoints."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from inference.model_config import ModelConfig
from inference.rope_config import LinearScaling, Llama3Scaling, YarnScaling

_HOST = torch.device("cpu")  # the tables are the same to the last bit wherever they go


class Rope:
    """Tables of ``cos`` and signed ``sin``, ``[positions, D]``.

    :meth:`rotate` computes ``x·cos + roll(x, D/2)·sin`` where the first half of ``sin`` is negated: the textbook
    ``x·cos + rotate_half(x)·sin`` in three calls.
    """

    def __init__(self, config: ModelConfig, positions: int, *, device: torch.device, dtype: torch.dtype) -> None:
        angles = torch.arange(positions, device=_HOST).float()[:, None] * _frequencies(config)[None, :]
        self._half = config.head_dim // 2
        cos, sin = angles.cos() * _amplitude(config), angles.sin() * _amplitude(config)
        self._cos = torch.cat([cos, cos], dim=1).to(device=device, dtype=dtype)
        self._sin = torch.cat([-sin, sin], dim=1).to(device=device, dtype=dtype)

    def at(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """``[T] → [T, 1, D]`` each; once a step, for all layers."""
        return self._cos.index_select(0, positions).unsqueeze(1), self._sin.index_select(0, positions).unsqueeze(1)

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """:param x: ``[T, heads, D]``."""
        return torch.addcmul(x * cos, x.roll(self._half, -1), sin)


def _frequencies(config: ModelConfig) -> Tensor:
    """Radians per position, ``[D/2]``."""
    exponents = torch.arange(0, config.head_dim, 2, device=_HOST).float() / config.head_dim
    base = 1.0 / config.rope.theta**exponents
    match config.rope.scaling:
        case None:
            return base
        case LinearScaling(factor):
            return base / factor
        case Llama3Scaling() as llama:
            return _llama3(base, llama)
        case YarnScaling() as yarn:
            return _yarn(base, yarn, config.rope.theta)


def _llama3(base: Tensor, scaling: Llama3Scaling) -> Tensor:
    wavelength = 2 * math.pi / base
    smooth = (scaling.original_context / wavelength - scaling.low_freq_factor) / (
        scaling.high_freq_factor - scaling.low_freq_factor
    )
    smooth = smooth.clamp(0, 1)
    return (1 - smooth) * base / scaling.factor + smooth * base


def _yarn(base: Tensor, scaling: YarnScaling, theta: float) -> Tensor:
    """Dimensions that turn more than ``beta_fast`` times within the trained context keep their frequency, those that
    turn less than ``beta_slow`` times are divided by ``factor``, and a ramp lies between (Peng et al., YaRN).
    """
    half = len(base)

    def dimension(turns: float) -> float:
        """The one that turns so many times."""
        return half * math.log(scaling.original_context / (turns * 2 * math.pi)) / math.log(theta)

    low, high = dimension(scaling.beta_fast), dimension(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, 2 * half - 1)
    ramp = ((torch.arange(half, device=_HOST).float() - low) / (high - low if high != low else 0.001)).clamp(0, 1)
    return base / scaling.factor * ramp + base * (1 - ramp)


def _amplitude(config: ModelConfig) -> float:
    """What cosine and sine are multiplied with: YaRN sharpens the attention of a stretched context."""
    scaling = config.rope.scaling
    if not isinstance(scaling, YarnScaling):
        return 1.0
    if scaling.amplitude is not None:
        return scaling.amplitude
    return 0.1 * math.log(scaling.factor) + 1.0 if scaling.factor > 1 else 1.0
