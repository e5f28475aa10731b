"""One adapter's matrices at one site, as the loops read them."""

from __future__ import annotations

from itertools import accumulate

import torch
from torch import Tensor

from sgmv.storage import FP8
from sgmv.weights import SlotWeights

_ALIGNMENT = 16
"""Bytes at whose multiples each matrix begins: what one thread of a GPU loads at a time."""


class Operands:
    """A copy of :class:`SlotWeights` in one buffer: every ``A``, then every ``B`` transposed, with their true ranks.

    Held as :data:`~sgmv.storage.FP8`, each row ``j`` of ``A`` and of ``Bᵀ`` is divided by its largest number and takes
    a factor: ``s · B A = s' · Σ_j factors[j] · B'[j]ᵀ A'[j]``. The factors of ``Bᵀ`` go into ``factors`` relative to
    their largest, which goes into ``scaling``: a shrunk number times its factor is no smaller than it has to be, so
    that float16 can hold it.

    :ivar a: per slice ``[r, in]``, ``None`` where the adapter leaves the slice alone.
    :ivar b: per slice ``[r, out]``, so that adding up scaled rows of it goes through memory in order.
    :ivar factors: per slice ``[r]`` float32, or ``None`` where the matrices are held as they are.
    """

    def __init__(self, weights: SlotWeights, *, device: torch.device, dtype: torch.dtype) -> None:
        """:param dtype: that the matrices are held in."""
        sources = [a for a in weights.a if a is not None] + [b.t() for b in weights.b if b is not None]
        self.ranks, self.scaling = weights.ranks, weights.scaling
        first_b = len(sources) // 2
        factors: list[Tensor] = []
        if dtype is FP8:
            pairs = [_divided(source) for source in sources]
            sources = [divided for divided, _ in pairs]
            lengths = [length for _, length in pairs]
            largest = [length.max() for length in lengths[first_b:]]
            factors = [a * b / most for a, b, most in zip(lengths[:first_b], lengths[first_b:], largest, strict=True)]
            rest = iter(torch.stack(largest).tolist())
            self.scaling = tuple(s * next(rest) if r else s for s, r in zip(self.scaling, self.ranks, strict=True))
        self._buffer, views = _laid_out(sources, device, dtype)
        self.a = _placed(views[:first_b], self.ranks)
        self.b = _placed(views[first_b:], self.ranks)
        self._factors, views = _laid_out(factors, device, torch.float32)
        self.factors = _placed(views, self.ranks) if views else (None,) * len(self.ranks)

    @property
    def num_bytes(self) -> int:
        return self._buffer.nbytes + self._factors.nbytes


def _laid_out(sources: list[Tensor], device: torch.device, dtype: torch.dtype) -> tuple[Tensor, list[Tensor]]:
    """Copies in one buffer, each where an address is a multiple of the alignment.

    From the host to a GPU all go at once, through pinned memory: the host does not wait for the device.
    """
    step = _ALIGNMENT // dtype.itemsize
    starts = [0, *accumulate(-(-source.numel() // step) * step for source in sources)]
    place = sources[0].device if sources else device
    pinned = device.type == "cuda" and place.type == "cpu"
    laid = torch.empty(starts[-1], device=place, dtype=dtype, pin_memory=pinned)
    for start, source in zip(starts, sources, strict=False):
        laid[start : start + source.numel()].view(source.shape).copy_(source)
    buffer = laid.to(device, non_blocking=True)
    views = [
        buffer[start : start + source.numel()].view(source.shape)
        for start, source in zip(starts, sources, strict=False)
    ]
    return buffer, views


def _divided(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Rows divided so that the largest number of each is the type's, and what each was divided by, ``[rows]``."""
    values = matrix.float()
    length = values.abs().amax(1) / torch.finfo(FP8).max
    length = torch.where(length == 0, 1.0, length)
    return (values / length[:, None]).to(FP8), length


def _placed(views: list[Tensor], ranks: tuple[int, ...]) -> tuple[Tensor | None, ...]:
    rest = iter(views)
    return tuple(next(rest) if rank else None for rank in ranks)
