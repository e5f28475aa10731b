"""Products with weights of fp8 as Triton kernels: ``y = scales ⊙ (W x) + bias + residual``, sums in float32.

A program computes a block of ``BN`` outputs of ``BT`` rows, as ``W xᵀ``: weights are the matrix instruction's first
operand, which Hopper takes from registers, where they have just been widened to the type of x. That is exact: e4m3fn's
numbers are numbers of bfloat16 and float16 as well.

A row's bits do not depend on the rows beside it. K is cut into ``splits`` parts by the weight's sizes alone. Each part
is one sum in order, begun at zero; the parts are added in order, whether one program has all of them or each has one
(``SPREAD``: a few rows would not keep a device busy otherwise; :func:`add_parts` then adds them). No atomics. Launch
them without fused multiply-adds, so that both ways round alike.
"""

# ruff: noqa: PLR0917 kernels take what they take, by position
# Without types: Triton reads annotations itself, and knows only its own.

import triton
import triton.language as tl

from sgmv.triton_kernels import as_kind, dot


@triton.jit
def _finished(total, n, target, scales, bias, residual, inside, BIASED: tl.constexpr, ADDED: tl.constexpr):
    """What is left to do with sums ``[…]`` of the same shape as ``n``, their outputs, and ``target``, their rows."""
    total *= tl.load(scales + n, mask=inside, other=0)
    if BIASED:
        total += tl.load(bias + n, mask=inside, other=0).to(tl.float32)
    if ADDED:
        total += tl.load(residual + target, mask=inside, other=0).to(tl.float32)
    return total


@triton.jit(do_not_specialize=["T", "splits"])
def multiply(
    y,  # [T, N]
    parts,  # where SPREAD: [splits, T, N] float32
    x,
    x_stride,
    w,  # [N, w_stride] bytes
    w_stride,
    scales,  # [N] float32
    bias,  # where BIASED: [N]
    residual,  # where ADDED
    residual_stride,
    T,
    N,
    K,
    splits,
    PART,  # of K, for one split; a multiple of BK
    EVEN: tl.constexpr,  # K is a multiple of BK
    SPREAD: tl.constexpr,
    BIASED: tl.constexpr,
    ADDED: tl.constexpr,
    FP8: tl.constexpr,  # how e4m3fn, loaded as bytes, is read
    BT: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    WIDE: tl.constexpr,
):
    # Tiles of rows lie beside each other in the grid: they read the same weights at about the same time.
    t = (tl.program_id(0) * BT + tl.arange(0, BT)).to(tl.int64)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    # What is beyond the edges reads row 0 of x or of w, and is not written.
    row = tl.where(t < T, t, 0)
    own = tl.where(n < N, n, 0).to(tl.int64)
    k = tl.arange(0, BK)
    of_x = x + row[None, :] * x_stride + k[:, None]
    of_w = w + own[:, None] * w_stride + k[None, :]
    first = tl.program_id(2) if SPREAD else 0
    last = first + 1 if SPREAD else splits
    total = tl.zeros((BN, BT), tl.float32)
    for split in range(first, last):
        part = tl.zeros((BN, BT), tl.float32)
        for k0 in range(split * PART, min(K, split * PART + PART), BK):
            if EVEN:
                xs = tl.load(of_x + k0)
                ws = tl.load(of_w + k0)
            else:
                xs = tl.load(of_x + k0, mask=(k0 + k < K)[:, None], other=0)
                ws = tl.load(of_w + k0, mask=(k0 + k < w_stride)[None, :], other=0)
            part = dot(as_kind(ws, xs.dtype, FP8), xs, part, WIDE)
        total += part
    inside = (t < T)[None, :] & (n < N)[:, None]
    if SPREAD:
        tl.store(parts + (first * T + t)[None, :] * N + n[:, None], total, mask=inside)
    else:
        target = row[None, :] * residual_stride + n[:, None]
        total = _finished(total, n[:, None], target, scales, bias, residual, inside, BIASED, ADDED)
        tl.store(y + t[None, :] * N + n[:, None], total.to(y.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["T", "splits"])
def add_parts(
    y,
    parts,
    scales,
    bias,
    residual,
    residual_stride,
    T,
    N,
    splits,
    BIASED: tl.constexpr,
    ADDED: tl.constexpr,
    BN: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    inside = n < N
    total = tl.zeros((BN,), tl.float32)
    for split in range(splits):
        total += tl.load(parts + (split * T + row) * N + n, mask=inside, other=0)
    target = row * residual_stride + n
    total = _finished(total, n, target, scales, bias, residual, inside, BIASED, ADDED)
    tl.store(y + row * N + n, total.to(y.dtype.element_ty), mask=inside)
