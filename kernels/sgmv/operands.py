"""One adapter's matrices at one site, as the loops read them."""

from __future__ import annotations

import torch
from torch import Tensor

from sgmv.weights import SlotWeights


class Operands:
    """A copy of :class:`SlotWeights` in one buffer: every ``A``, then every ``B`` transposed, with their true ranks.

    :ivar a: per slice ``[r, in]``, ``None`` where the adapter leaves the slice alone.
    :ivar b: per slice ``[r, out]``, so that adding up scaled rows of it goes through memory in order.
    """

    def __init__(self, weights: SlotWeights, *, device: torch.device, dtype: torch.dtype) -> None:
        sources = [a for a in weights.a if a is not None] + [b.t() for b in weights.b if b is not None]
        buffer = torch.empty(sum(source.numel() for source in sources), device=device, dtype=dtype)
        views = [
            part.view(source.shape).copy_(source)
            for part, source in zip(
                buffer.split_with_sizes([source.numel() for source in sources]), sources, strict=True
            )
        ]
        self._buffer = buffer
        self.ranks, self.scaling = weights.ranks, weights.scaling
        first_b = len(views) // 2
        self.a = _placed(views[:first_b], self.ranks)
        self.b = _placed(views[first_b:], self.ranks)

    @property
    def num_bytes(self) -> int:
        return self._buffer.numel() * self._buffer.element_size()


def _placed(views: list[Tensor], ranks: tuple[int, ...]) -> tuple[Tensor | None, ...]:
    rest = iter(views)
    return tuple(next(rest) if rank else None for rank in ranks)
