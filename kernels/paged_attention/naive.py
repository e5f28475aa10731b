"""The specification."""

from __future__ import annotations

import collections.abc

import torch
from torch import Tensor

from paged_attention.tiles import Sequence


def attention_naive(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    sequences: collections.abc.Sequence[Sequence],
    *,
    window: int | None = None,
    soft_cap: float | None = None,
) -> Tensor:
    """Each token of a step attends to the positions up to its own, which lie in its sequence's blocks.

    :param q: ``[T, heads, D]``, the sequences' new tokens end to end.
    :param keys: ``[blocks, block_size, kv_heads, D]``, as ``values``; the new tokens' own are stored already.
    :param window: how many positions a token sees, its own included.
    :param soft_cap: scores become ``cap · tanh(s / cap)``.
    :returns: ``[T, heads, D]``.
    """
    block_size, kv_heads, dim = keys.shape[1:]
    group = q.shape[1] // kv_heads
    out = torch.zeros_like(q)
    row = 0
    for sequence in sequences:
        for position in range(sequence.start, sequence.start + sequence.count):
            first = 0 if window is None else max(0, position + 1 - window)
            seen = range(first, position + 1)
            places = [(sequence.blocks[p // block_size], p % block_size) for p in seen]
            k = torch.stack([keys[place] for place in places])
            v = torch.stack([values[place] for place in places])
            for head in range(q.shape[1]):
                scores = (k[:, head // group] @ q[row, head]) / dim**0.5
                if soft_cap is not None:
                    scores = soft_cap * torch.tanh(scores / soft_cap)
                out[row, head] = torch.softmax(scores, 0) @ v[:, head // group]
            row += 1
    return out
