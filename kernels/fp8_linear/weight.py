"""A weight as fp8: numbers of 8 bits, and a scale for each output."""

from __future__ import annotations

import torch
from torch import Tensor

from fp8_linear.errors import LinearArgumentError

FP8 = torch.float8_e4m3fn
_MOST = torch.finfo(FP8).max
_ALIGNMENT = 16
"""Bytes at whose multiples each row begins: what one thread of a GPU loads at a time."""
_ROWS = 4096
"""Rows that are converted at a time: in float32 all of a head of 128,256 would take gigabytes beside it."""


class Fp8Weight:
    """``weight[n] ≈ scales[n] · numbers[n]``: the largest number of each row becomes 448, the type's largest.

    :ivar numbers: ``[N, K]`` float8_e4m3fn; rows are ``stride`` bytes apart, with zeros between them.
    :ivar scales: ``[N]`` float32. They are a row's own, so that a rank's rows are what the whole weight's are.
    """

    def __init__(self, weight: Tensor) -> None:
        """:param weight: ``[N, K]``. Raises :class:`LinearArgumentError` where a number is not finite."""
        if weight.dim() != 2 or not weight.numel():
            raise LinearArgumentError("weight", f"shape {tuple(weight.shape)}; a matrix is expected")
        count, width = weight.shape
        self.stride = -(-width // _ALIGNMENT) * _ALIGNMENT
        self.bytes = torch.zeros(count, self.stride, dtype=torch.uint8, device=weight.device)
        self.scales = torch.empty(count, dtype=torch.float32, device=weight.device)
        self.numbers = self.bytes.view(FP8)[:, :width]
        for start in range(0, count, _ROWS):
            rows = weight[start : start + _ROWS].float()
            if not bool(rows.isfinite().all()):
                raise LinearArgumentError("weight", "a number is not finite")
            scales = rows.abs().amax(1) / _MOST
            # a scale may be too small for a float; of zeros it is anything
            scales = scales.clamp_min(torch.finfo(torch.float32).tiny)
            self.scales[start : start + _ROWS] = scales
            self.numbers[start : start + _ROWS] = (rows / scales[:, None]).to(FP8)

    @property
    def num_bytes(self) -> int:
        return self.bytes.nbytes + self.scales.nbytes
