"""DoRA's gains and the embedding's LoRA as Triton kernels. No atomics: each number of y has one writer."""

# ruff: noqa: PLR0917 kernels take what they take, by position
# Without types: Triton reads annotations itself, and knows only its own.

import triton
import triton.language as tl

from sgmv.triton_kernels import dot, tile_of

EMBEDDING_ENTRY = 4
"""64-bit numbers of a slot in the embedding's table: addresses of A ``[vocabulary, rank]`` and B ``[rank, hidden]``,
the rank; one is free.
"""
_ENTRY = tl.constexpr(EMBEDDING_ENTRY)


@triton.jit(do_not_specialize=["num_slots"])
def amplify(
    y,
    y_stride,
    residual,  # where ADDED: already in y
    residual_stride,
    bias,  # where BIASED: [WIDTH]
    slots,  # [T] int32
    table,  # [slots] int64 addresses of g − 1, [WIDTH]; 0: no gains
    num_slots,
    WIDTH: tl.constexpr,
    WEIGHT: tl.constexpr,
    ADDED: tl.constexpr,
    BIASED: tl.constexpr,
    BN: tl.constexpr,
):
    """``y[t] += (g − 1)[slot of t] ⊙ (y[t] − bias − residual[t])``, in float32, rounded once."""
    row = tl.program_id(0)
    slot = tl.load(slots + row)
    known = (slot >= 0) & (slot < num_slots)
    address = tl.load(table + slot, mask=known, other=0)
    if address != 0:
        excess = tl.multiple_of(address.to(tl.pointer_type(WEIGHT)), 16)
        n = tl.program_id(1) * BN + tl.arange(0, BN)
        inside = n < WIDTH
        target = y + row.to(tl.int64) * y_stride + n
        before = tl.load(target, mask=inside, other=0).to(tl.float32)
        product = before
        if ADDED:
            product -= tl.load(residual + row.to(tl.int64) * residual_stride + n, mask=inside, other=0).to(tl.float32)
        if BIASED:
            product -= tl.load(bias + n, mask=inside, other=0).to(tl.float32)
        more = tl.load(excess + n, mask=inside, other=0).to(tl.float32)
        tl.store(target, (before + more * product).to(y.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["num_slots", "vocabulary"])
def embed(
    y,
    y_stride,
    tokens,  # [T]
    tiles,
    rows,
    table,  # [slots, ENTRY] int64
    num_slots,
    vocabulary,
    HIDDEN: tl.constexpr,
    WEIGHT: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BR: tl.constexpr,
    WIDE: tl.constexpr,
):
    """``y[t] += B[s] A[s][:, token of t]``; B has been scaled. A token that is not in the vocabulary is left alone."""
    slot, _, count, filled, row = tile_of(tiles, rows, BM)
    known = (slot >= 0) & (slot < num_slots) & (count > 0)
    entry = table + slot.to(tl.int64) * _ENTRY
    rank = tl.load(entry + 2, mask=known, other=0).to(tl.int32)
    if rank > 0:
        a = tl.multiple_of(tl.load(entry).to(tl.pointer_type(WEIGHT)), 16)
        b = tl.multiple_of(tl.load(entry + 1).to(tl.pointer_type(WEIGHT)), 16)
        token = tl.load(tokens + row, mask=filled, other=-1).to(tl.int64)
        real = filled & (token >= 0) & (token < vocabulary)
        n = tl.program_id(1) * BN + tl.arange(0, BN)
        inside = n < HIDDEN
        r = tl.arange(0, BR)
        total = tl.zeros((BM, BN), tl.float32)
        for r0 in range(0, rank, BR):
            own = (r0 + r) < rank
            at = token[:, None] * rank + (r0 + r)[None, :]
            shrunk = tl.load(a + at, mask=real[:, None] & own[None, :], other=0)
            at = (r0 + r)[:, None].to(tl.int64) * HIDDEN + n[None, :]
            ws = tl.load(b + at, mask=own[:, None] & inside[None, :], other=0)
            total = dot(shrunk, ws, total, WIDE)
        target = y + row[:, None] * y_stride + n[None, :]
        written = real[:, None] & inside[None, :]
        before = tl.load(target, mask=written, other=0).to(tl.float32)
        tl.store(target, (before + total).to(y.dtype.element_ty), mask=written)
