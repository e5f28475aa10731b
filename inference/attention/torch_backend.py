"""Attention on plain torch: the CPU's backend, and the oracle for others.

One-token rows (decode) are gathered by block table into buckets of like length and attended together; longer rows
(prefill) are attended one by one. In a decode bucket the query heads that share a KV head are laid out as query
positions, so that grouped heads cost no copy of K and V. Layers with a sliding window read what lies in it and no more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional as F

from inference.attention.base import AttentionStep
from inference.core.step import Row

# Decode rows share a bucket while the longest has at most this many times the positions of the shortest, or this many
# more positions: padding costs copies, a bucket costs calls.
_BUCKET_RATIO, _BUCKET_SLACK = 1.5, 64
_HOST = torch.device("cpu")
"""A step's indices and masks are worked out here, and sent to the device whole."""


@dataclass(frozen=True, slots=True)
class _Decode:
    """Several one-token rows: ``token`` ``[n]``, ``index`` ``[n·longest]`` into the pool, additive ``mask``."""

    token: Tensor
    index: Tensor
    longest: int
    mask: Tensor | None


@dataclass(frozen=True, slots=True)
class _Prefill:
    """One row of several tokens: ``start:stop`` of the step; ``index`` ``[context]`` into the pool if it reads any.

    Without a ``mask`` every token sees all that come before it.
    """

    start: int
    stop: int
    index: Tensor | None
    mask: Tensor | None


@dataclass(slots=True)
class _View:
    """What the rows of a step read through one window."""

    decodes: list[_Decode] = field(default_factory=list)
    prefills: list[_Prefill] = field(default_factory=list)


@dataclass(slots=True)
class TorchStep:
    """:param views: by window, one for all layers that share it."""

    write: Tensor
    views: dict[int | None, _View]


class TorchAttention:
    """:param windows: per layer, how many positions a token sees, its own included; ``None``: all before it."""

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
        windows: Sequence[int | None] | None = None,
    ) -> None:
        self._windows = tuple(windows) if windows is not None else (None,) * num_layers
        self.block_size, self.num_blocks = block_size, num_blocks
        self._heads, self._kv_heads, self._dim = num_heads, num_kv_heads, head_dim
        self._device, self._dtype = device, dtype
        positions = num_blocks * block_size
        self._keys = torch.zeros(num_layers, positions, num_kv_heads, head_dim, device=device, dtype=dtype)
        self._values = torch.zeros_like(self._keys)

    def begin(self, rows: Sequence[Row]) -> TorchStep:
        tables = [self._positions(row) for row in rows]
        write = torch.cat([table[row.start :] for row, table in zip(rows, tables, strict=True)])
        views = {window: self._view(rows, tables, window) for window in set(self._windows)}
        return TorchStep(write.to(self._device), views)

    def _view(self, rows: Sequence[Row], tables: list[Tensor], window: int | None) -> _View:
        view = _View()
        ones: list[tuple[int, Tensor]] = []
        first = 0
        for row, table in zip(rows, tables, strict=True):
            stop = first + len(row.tokens)
            if len(row.tokens) == 1:
                ones.append((first, table if window is None else table[-window:]))
            else:
                view.prefills.append(self._prefill(row, table, first, stop, window))
            first = stop
        view.decodes = [self._decode(bucket) for bucket in _buckets(ones)]
        return view

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, step: AttentionStep) -> Tensor:
        todo = cast("TorchStep", step)
        view = todo.views[self._windows[layer]]
        keys, values = self._keys[layer], self._values[layer]
        keys.index_copy_(0, todo.write, k)
        values.index_copy_(0, todo.write, v)
        if len(view.decodes) == 1 and not view.prefills:
            return self._attend_decode(q, keys, values, view.decodes[0])
        out = q.new_empty(len(q), self._heads * self._dim)
        for decode in view.decodes:
            out.index_copy_(0, decode.token, self._attend_decode(q.index_select(0, decode.token), keys, values, decode))
        for prefill in view.prefills:
            own = slice(prefill.start, prefill.stop)
            if prefill.index is None:
                context_k, context_v = k[own], v[own]
            else:
                context_k, context_v = keys.index_select(0, prefill.index), values.index_select(0, prefill.index)
            attended = F.scaled_dot_product_attention(
                q[own].transpose(0, 1).unsqueeze(0),
                context_k.transpose(0, 1).unsqueeze(0),
                context_v.transpose(0, 1).unsqueeze(0),
                attn_mask=prefill.mask,
                is_causal=prefill.mask is None,
                enable_gqa=True,
            )
            out[own] = attended[0].transpose(0, 1).reshape(prefill.stop - prefill.start, -1)
        return out

    def _attend_decode(self, q: Tensor, keys: Tensor, values: Tensor, decode: _Decode) -> Tensor:
        count = len(q)
        shape = (count, decode.longest, self._kv_heads, self._dim)
        attended = F.scaled_dot_product_attention(
            q.reshape(count, self._kv_heads, -1, self._dim),
            keys.index_select(0, decode.index).view(shape).transpose(1, 2),
            values.index_select(0, decode.index).view(shape).transpose(1, 2),
            attn_mask=decode.mask,
        )
        return attended.reshape(count, -1)

    def _positions(self, row: Row) -> Tensor:
        """Pool position of each of the row's positions up to the step's end."""
        length = row.start + len(row.tokens)
        blocks = torch.tensor(row.block_table[: -(-length // self.block_size)], device=_HOST)
        return (blocks[:, None] * self.block_size + torch.arange(self.block_size, device=_HOST)).flatten()[:length]

    def _decode(self, rows: list[tuple[int, Tensor]]) -> _Decode:
        lengths = torch.tensor([len(table) for _, table in rows], device=_HOST)
        longest = int(lengths.max())
        index = torch.stack([F.pad(table, (0, longest - len(table)), value=int(table[-1])) for _, table in rows])
        mask = None
        if int(lengths.min()) < longest:
            hidden = torch.arange(longest, device=_HOST)[None, :] >= lengths[:, None]
            mask = torch.zeros(hidden.shape, dtype=self._dtype, device=_HOST).masked_fill_(hidden, float("-inf"))
            mask = mask[:, None, None, :].to(self._device)
        token = torch.tensor([token for token, _ in rows], device=self._device)
        return _Decode(token, index.flatten().to(self._device), longest, mask)

    def _prefill(self, row: Row, table: Tensor, start: int, stop: int, window: int | None) -> _Prefill:
        count, length = stop - start, len(table)
        if row.start == 0 and (window is None or count <= window):
            return _Prefill(start, stop, None, None)
        first = 0 if window is None else max(0, row.start - window + 1)  # the earliest position that any token sees
        mask = torch.full((count, length - first), float("-inf"), dtype=self._dtype, device=_HOST).triu_(
            row.start - first + 1
        )
        if window is not None:
            gone = torch.ones_like(mask, dtype=torch.bool).tril_(row.start - first - window)
            mask.masked_fill_(gone, float("-inf"))
        index = None if row.start == 0 else table[first:].to(self._device)
        return _Prefill(start, stop, index, mask[None, None].to(self._device))


def _buckets(rows: list[tuple[int, Tensor]]) -> list[list[tuple[int, Tensor]]]:
    if not rows:
        return []
    shortest = min(len(table) for _, table in rows)
    longest = max(len(table) for _, table in rows)
    if longest <= max(shortest * _BUCKET_RATIO, shortest + _BUCKET_SLACK):
        return [rows]  # in the order of their tokens, which lets attend() skip a gather and a scatter
    buckets: list[list[tuple[int, Tensor]]] = []
    for entry in sorted(rows, key=lambda entry: len(entry[1])):
        first = len(buckets[-1][0][1]) if buckets else 0
        if buckets and len(entry[1]) <= max(first * _BUCKET_RATIO, first + _BUCKET_SLACK):
            buckets[-1].append(entry)
        else:
            buckets.append([entry])
    return buckets
