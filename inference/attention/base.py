"""What the decoder asks of attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from inference.core.step import Row


class AttentionStep(Protocol):
    """A backend's own record of one step: where each token's KV goes, and what each sequence reads."""


class AttentionBackend(Protocol):
    """Owns the KV pool, ``[num_blocks, block_size, kv_heads, D]`` per layer for K and for V."""

    block_size: int
    num_blocks: int

    def begin(self, rows: Sequence[Row]) -> AttentionStep:
        """Work out indices once for all layers. ``rows`` are in the order in which their tokens lie end to end."""
        ...

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, step: AttentionStep) -> Tensor:
        """Store the step's ``k`` and ``v`` ``[T, kv_heads, D]``, then causal attention of ``q`` ``[T, heads, D]``.

        :returns: ``[T, heads·D]``, contiguous. A sequence reads only positions that it, or the sequence whose blocks it
            shares, has written.
        """
        ...
