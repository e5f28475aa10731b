"""Attention on a GPU by the kernels of :mod:`paged_attention`; :class:`TorchAttention` is the specification."""

from __future__ import annotations

import collections.abc
from typing import cast

import torch
from torch import Tensor

from inference.attention.base import AttentionStep
from inference.core.step import Row
from paged_attention import Sequence, Tiles
from paged_attention.attention import DIMS, DTYPES, PAGES, Shape, paged_attention, write


class TritonAttention:
    """An :class:`~inference.attention.base.AttentionBackend`. K and V are read where they lie, nothing is gathered.

    :param windows: per layer, how many positions a token sees, its own included; ``None``: all before it.
    """

    def __init__(
        self,
        *,
        num_layers: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        num_blocks: int,
        block_size: int,
        device: torch.device,
        dtype: torch.dtype,
        windows: collections.abc.Sequence[int | None] | None = None,
    ) -> None:
        self.block_size, self.num_blocks = block_size, num_blocks
        self._windows = tuple(windows) if windows is not None else (None,) * num_layers
        self._shape = Shape(num_heads, num_kv_heads, head_dim, block_size, dtype)
        self._device = device
        pool = (num_layers, num_blocks, block_size, num_kv_heads, head_dim)
        self._keys = torch.zeros(pool, device=device, dtype=dtype)
        self._values = torch.zeros_like(self._keys)

    @staticmethod
    def supports(*, head_dim: int, block_size: int, dtype: torch.dtype) -> bool:
        return head_dim in DIMS and block_size in PAGES and dtype in DTYPES

    def begin(self, rows: collections.abc.Sequence[Row]) -> Tiles:
        sequences = [Sequence(row.start, len(row.tokens), row.block_table) for row in rows]
        return Tiles.of(
            sequences,
            block_size=self.block_size,
            num_blocks=self.num_blocks,
            most=self._shape.most_tokens,
            device=self._device,
        )

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, step: AttentionStep) -> Tensor:
        tiles = cast("Tiles", step)
        keys, values = self._keys[layer], self._values[layer]
        write(k, v, keys, values, tiles)
        out = paged_attention(q, keys, values, tiles, self._shape, window=self._windows[layer])
        return out.view(len(out), -1)
