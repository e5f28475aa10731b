"""The kernels of :mod:`paged_attention.triton_kernels` on tensors."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from paged_attention.errors import AttentionArgumentError
from paged_attention.tiles import Tiles
from paged_attention.triton_kernels import attend, combine, store

INTERPRETED = bool(triton.knobs.runtime.interpret)
"""Triton runs the kernels on the CPU, for tests (``TRITON_INTERPRET=1``, set before this is imported)."""
SEGMENTS = 8
"""Parts of what a decoding token sees, whatever its length: one graph serves every step."""
DIMS = (64, 80, 96, 128, 256)
PAGES = (16, 32)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_LOG2_E = math.log2(math.e)


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes that the kernels are compiled for."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    dtype: torch.dtype

    def __post_init__(self) -> None:
        for name, value, known in (("head_dim", self.head_dim, DIMS), ("block_size", self.block_size, PAGES)):
            if value not in known:
                raise AttentionArgumentError(name, f"{value}; there are kernels for {', '.join(map(str, known))}")
        if self.dtype not in DTYPES:
            raise AttentionArgumentError("dtype", f"{self.dtype}; there are kernels for {', '.join(map(str, DTYPES))}")
        if self.num_heads % self.num_kv_heads:
            raise AttentionArgumentError("num_heads", f"{self.num_heads} are no multiple of {self.num_kv_heads}")

    @property
    def group(self) -> int:
        return self.num_heads // self.num_kv_heads

    @property
    def decode_rows(self) -> int:
        """Of a tile of one token: at least 16, which is what the smallest matrix instruction takes."""
        return max(16, int(triton.next_power_of_2(self.group)))

    @property
    def prefill_rows(self) -> int:
        """Of a tile of a prompt: K and V are read once for all of them. float32 fills the registers with fewer."""
        if self.dtype == torch.float32:
            return self.decode_rows
        return max(64 if self.head_dim <= 128 else 32, self.decode_rows)

    @property
    def prefill_warps(self) -> int:
        return 8 if self.head_dim >= 96 and self.dtype != torch.float32 else 4

    @property
    def most_tokens(self) -> int:
        """Of one tile, which :meth:`Tiles.of` is to be given."""
        return self.prefill_rows // self.group

    @property
    def turn(self) -> int:
        """Positions of a turn of the loop. More of them spill registers."""
        return 16 if self.dtype == torch.float32 else 32

    @property
    def bd(self) -> int:
        return int(triton.next_power_of_2(self.head_dim))


def write(k: Tensor, v: Tensor, keys: Tensor, values: Tensor, tiles: Tiles) -> None:
    """Store a step's ``k`` and ``v`` ``[T, kv_heads, D]`` in a layer's pools ``[blocks, block_size, kv_heads, D]``."""
    width = keys.shape[2] * keys.shape[3]
    for name, tensor in (("k", k), ("v", v)):
        _check(name, tensor, (tiles.num_tokens, *keys.shape[2:]), keys)
    if tiles.num_tokens:
        sizes = {"WIDTH": width, "BLOCK": triton.next_power_of_2(width)}
        store[tiles.num_tokens,](k, k.stride(0), v, v.stride(0), keys, values, tiles.places, **sizes)


def paged_attention(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    tiles: Tiles,
    shape: Shape,
    *,
    window: int | None = None,
    soft_cap: float | None = None,
) -> Tensor:
    """As :func:`~paged_attention.naive.attention_naive`. ``q`` ``[T, heads, D]``; its heads lie side by side.

    :raises AttentionArgumentError: before anything is launched.
    """
    _check("q", q, (tiles.num_tokens, shape.num_heads, shape.head_dim), keys)
    pool = (shape.block_size, shape.num_kv_heads, shape.head_dim)
    for name, tensor in (("keys", keys), ("values", values)):
        if tuple(tensor.shape[1:]) != pool or not tensor.is_contiguous():
            raise AttentionArgumentError(name, f"{tuple(tensor.shape)}, expected contiguous (blocks, {pool})")
    if values.shape != keys.shape or values.dtype != keys.dtype or values.device != keys.device:
        message = f"{tuple(values.shape)}, {values.dtype} on {values.device}; the keys are {tuple(keys.shape)}"
        raise AttentionArgumentError("values", f"{message}, {keys.dtype} on {keys.device}")
    if window is not None and window < 1:
        raise AttentionArgumentError("window", f"{window}; a token sees itself at least, or None for all before it")
    if soft_cap is not None and not soft_cap > 0:
        raise AttentionArgumentError("soft_cap", f"{soft_cap} has to be above 0, or None")
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    scale, cap = _LOG2_E / math.sqrt(shape.head_dim), _LOG2_E * (soft_cap or 0.0)
    sizes = {
        "KV_HEADS": shape.num_kv_heads,
        "GROUP": shape.group,
        "D": shape.head_dim,
        "BD": shape.bd,
        "PAGE": shape.block_size,
        "BN": shape.turn,
        "CAPPED": soft_cap is not None,
        "WIDE": INTERPRETED,
    }
    tail = (tiles.tables, scale, cap, window or 0)
    head = (q, q.stride(0), keys, values)
    if count := len(tiles.prefill):
        grid = (count, shape.num_kv_heads, 1)
        own = {"SEGMENTS": 1, "BM": shape.prefill_rows, "num_warps": shape.prefill_warps}
        attend[grid](out, out, *head, tiles.prefill, *tail, **own, **sizes)
    if count := len(tiles.decode):
        parts = torch.empty(SEGMENTS, count, *q.shape[1:], dtype=torch.float32, device=q.device)
        notes = torch.empty(SEGMENTS, count, shape.num_heads, 2, dtype=torch.float32, device=q.device)
        grid = (count, shape.num_kv_heads, SEGMENTS)
        own = {"SEGMENTS": SEGMENTS, "BM": shape.decode_rows}
        attend[grid](parts, notes, *head, tiles.decode, *tail, **own, **sizes)
        own = {"HEADS": shape.num_heads, "D": shape.head_dim, "BD": shape.bd, "SEGMENTS": SEGMENTS}
        combine[count, shape.num_heads](out, parts, notes, tiles.decode, **own)
    return out


def _check(name: str, tensor: Tensor, shape: tuple[int, ...], pool: Tensor) -> None:
    if tuple(tensor.shape) != shape:
        raise AttentionArgumentError(name, f"shape {tuple(tensor.shape)}, expected {shape}")
    if tensor.dtype != pool.dtype or tensor.dtype not in DTYPES:
        raise AttentionArgumentError(name, f"{tensor.dtype}, the cache is {pool.dtype}")
    if tensor.device != pool.device:
        raise AttentionArgumentError(name, f"on {tensor.device}, the cache is on {pool.device}")
    if tensor.stride()[1:] != (shape[2], 1) and tensor.numel():
        raise AttentionArgumentError(name, "the heads of a token have to lie side by side")
