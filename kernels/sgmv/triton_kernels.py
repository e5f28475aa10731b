"""SGMV as two Triton kernels, for decode and prefill alike: shrink ``h = A x``, expand ``y += scaling · B h``.

A *tile* is up to ``BM`` rows of one slot; the host groups a step's rows, so the device sorts nothing and the number of
programs depends on sizes alone. Where no two rows share an adapter a tile is one row, and reads its adapter's matrices
once, which is the floor. A tile without rows, or of a slot without matrices, is left at once.

Deterministic, and a row's bits are its own: each sum runs over ``K`` in parts of a size that the site fixes, the parts
are added in order by the only program that writes the row's columns, and a row meets the same instructions whatever
stands beside it. No atomics, nothing zeroed beforehand. Matrices are found through tables of addresses with true ranks:
nothing is padded to the largest, and loading an adapter changes entries of a table, not the kernels or their graph.

:mod:`sgmv.triton_pointwise` has the kernels of DoRA's gains and of the embedding.
"""

# ruff: noqa: PLR0917 kernels take what they take, by position
# Without types: Triton reads annotations itself, and knows only its own.

import triton
import triton.language as tl

ENTRY = 8
"""64-bit numbers of a slot's slice in a site's table: addresses of A ``[rank, K]`` and B ``[rank, width]``, the rank,
the bits of the float32 scaling, the address of the factors ``[rank]`` float32. Three are free: an entry is 64 bytes.
"""
_ENTRY = tl.constexpr(ENTRY)


@triton.jit
def dot(a, b, total, WIDE: tl.constexpr):
    """``total + a b``. :param WIDE: in float32, for Triton's interpreter, which cannot multiply bfloat16."""
    if WIDE:
        a = a.to(tl.float32)
        b = b.to(tl.float32)
    return tl.dot(a, b, total, input_precision="ieee")


@triton.jit
def tile_of(tiles, rows, BM: tl.constexpr):
    """Of this program's tile: its slot, the place of its first row, which places are filled, and their rows."""
    tile = tl.program_id(0)
    slot = tl.load(tiles + 3 * tile)
    first = tl.load(tiles + 3 * tile + 1)
    count = tl.load(tiles + 3 * tile + 2)
    place = tl.arange(0, BM)
    filled = place < count
    row = tl.load(rows + first + place, mask=filled, other=0).to(tl.int64)
    return slot, first, count, filled, row


@triton.jit
def as_kind(stored, KIND: tl.constexpr, FP8: tl.constexpr):
    """Loaded matrices in the type of x. :param FP8: how e4m3fn, loaded as bytes, is read."""
    if FP8 == "native":
        return stored.to(tl.float8e4nv, bitcast=True).to(KIND)
    elif FP8 == "halves":
        # Exact as well. To bfloat16 sm_90 has an instruction for two float32, but for one float16 at a time; on gfx942
        # this way takes half as many registers again.
        half = stored.to(tl.float8e4nv, bitcast=True).to(tl.float16)
        return half.to(tl.float32).to(KIND)
    elif FP8 == "bits":
        # Sign, exponent and fraction, put where float16 has them, are 2⁻⁸ of the number: the exponents' zeros differ
        # by 8, and numbers below the least normal one mean the same in both. Exact.
        bits = stored.to(tl.uint16)
        half = ((bits & 0x80) << 8) | ((bits & 0x7F) << 7)
        return (half.to(tl.float16, bitcast=True).to(tl.float32) * 256.0).to(KIND)
    else:
        return stored.to(KIND)


@triton.jit(do_not_specialize=["num_slots", "T"])
def shrink(
    h,  # [splits, T, slices, rank_stride] float32, by place
    x,
    x_stride,
    tiles,  # [n, 3] int32: slot, first place, rows (0: nothing to do)
    rows,  # [T] int32: row at each place
    table,  # [slots, slices, ENTRY] int64
    num_slots,
    T,
    rank_stride,
    K: tl.constexpr,
    SLICES: tl.constexpr,
    SPLITS: tl.constexpr,
    PART: tl.constexpr,  # of K, for one split; a multiple of BK
    WEIGHT: tl.constexpr,  # type that lies in memory; bytes for fp8
    FP8: tl.constexpr,
    BM: tl.constexpr,
    BK: tl.constexpr,
    BR: tl.constexpr,
    WIDE: tl.constexpr,
):
    slot, first, count, filled, row = tile_of(tiles, rows, BM)
    part = tl.program_id(1)
    piece = part // SPLITS
    split = part % SPLITS
    known = (slot >= 0) & (slot < num_slots) & (count > 0)
    entry = table + (slot.to(tl.int64) * SLICES + piece) * _ENTRY
    rank = tl.load(entry + 2, mask=known, other=0).to(tl.int32)
    if rank > 0:
        # said of the pointer: said of the number it is lost, and each load moves 2 bytes in place of 16
        a = tl.multiple_of(tl.load(entry).to(tl.pointer_type(WEIGHT)), 16)
        k = tl.arange(0, BK)
        r = tl.arange(0, BR)
        place = (first + tl.arange(0, BM)).to(tl.int64)
        for r0 in range(0, rank, BR):
            total = tl.zeros((BM, BR), tl.float32)
            own = (r0 + r) < rank
            for k0 in range(split * PART, min(K, split * PART + PART), BK):
                inside = k0 + k < K
                at = row[:, None] * x_stride + (k0 + k)[None, :]
                xs = tl.load(x + at, mask=filled[:, None] & inside[None, :], other=0)
                at = (r0 + r)[None, :].to(tl.int64) * K + (k0 + k)[:, None]
                ws = tl.load(a + at, mask=own[None, :] & inside[:, None], other=0)
                total = dot(xs, as_kind(ws, xs.dtype, FP8), total, WIDE)
            target = ((split * T + place) * SLICES + piece) * rank_stride
            tl.store(h + target[:, None] + (r0 + r)[None, :], total, mask=filled[:, None] & own[None, :])


@triton.jit(do_not_specialize=["num_slots", "T"])
def expand(
    y,
    y_stride,
    h,
    tiles,
    rows,
    table,
    columns,  # [n, 3] int32: slice, first column of it, column of y at which the slice begins
    widths,  # [slices] int32
    num_slots,
    T,
    rank_stride,
    SLICES: tl.constexpr,
    SPLITS: tl.constexpr,
    WEIGHT: tl.constexpr,
    FP8: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BR: tl.constexpr,
    WIDE: tl.constexpr,
    EVEN: tl.constexpr,  # all slices begin at multiples of 16, and so does each row of their B
):
    slot, first, count, filled, row = tile_of(tiles, rows, BM)
    block = tl.program_id(1)
    piece = tl.load(columns + 3 * block)
    column = tl.load(columns + 3 * block + 1)
    begin = tl.load(columns + 3 * block + 2)
    width = tl.load(widths + piece)
    if EVEN:
        width = tl.multiple_of(width, 16)
        column = tl.multiple_of(column, 16)
        begin = tl.multiple_of(begin, 16)
    known = (slot >= 0) & (slot < num_slots) & (count > 0)
    entry = table + (slot.to(tl.int64) * SLICES + piece) * _ENTRY
    rank = tl.load(entry + 2, mask=known, other=0).to(tl.int32)
    if rank > 0:
        b = tl.multiple_of(tl.load(entry + 1).to(tl.pointer_type(WEIGHT)), 16)
        scaling = tl.load(entry + 3).to(tl.int32).to(tl.float32, bitcast=True)
        n = column + tl.arange(0, BN)
        r = tl.arange(0, BR)
        place = (first + tl.arange(0, BM)).to(tl.int64)
        kind: tl.constexpr = y.dtype.element_ty
        total = tl.zeros((BM, BN), tl.float32)
        for r0 in range(0, rank, BR):
            own = (r0 + r) < rank
            shrunk = tl.zeros((BM, BR), tl.float32)
            for split in tl.static_range(SPLITS):
                at = ((split * T + place) * SLICES + piece)[:, None] * rank_stride + (r0 + r)[None, :]
                shrunk += tl.load(h + at, mask=filled[:, None] & own[None, :], other=0)
            if FP8 is not None:
                factors = tl.load(entry + 4).to(tl.pointer_type(tl.float32))
                shrunk *= tl.load(factors + r0 + r, mask=own, other=0)[None, :]
            at = (r0 + r)[:, None].to(tl.int64) * width + n[None, :]
            ws = tl.load(b + at, mask=own[:, None] & (n < width)[None, :], other=0)
            total = dot(shrunk.to(kind), as_kind(ws, kind, FP8), total, WIDE)
        target = y + row[:, None] * y_stride + (begin + n)[None, :]
        written = filled[:, None] & (n < width)[None, :]
        before = tl.load(target, mask=written, other=0).to(tl.float32)
        tl.store(target, (before + scaling * total).to(kind), mask=written)
