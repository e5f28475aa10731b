"""Attention over a paged KV cache as Triton kernels: one for decode, chunked prefill and prefix hits.

A program takes a *tile* (some tokens of one sequence) and one KV head: its rows are tokens times the query heads that
share that head, so that K and V are read once for all of them. Tokens that decode cut what they see into a fixed
number of segments, each a program of its own, whose parts :func:`combine` adds in order: no atomics, and a row's bits
depend on its own sequence alone, not on what shares the step.
"""

# ruff: noqa: PLR0915, PLR0917 a kernel is one loop, and takes what it takes by position
# Without types: Triton reads annotations itself, and knows only its own.

import triton
import triton.language as tl


@triton.jit
def _dot(a, b, total, WIDE: tl.constexpr):
    """``total + a b``. :param WIDE: in float32, for Triton's interpreter, which cannot multiply bfloat16."""
    if WIDE:
        a = a.to(tl.float32)
        b = b.to(tl.float32)
    return tl.dot(a, b, total, input_precision="ieee")


@triton.jit
def store(
    k,
    k_stride,
    v,
    v_stride,
    keys,  # [blocks · block_size, WIDTH]
    values,
    places,  # [T] int32; negative: nothing to store
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    token = tl.program_id(0)
    place = tl.load(places + token).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < WIDTH
    if place >= 0:
        found = tl.load(k + token.to(tl.int64) * k_stride + at, mask=inside)
        tl.store(keys + place * WIDTH + at, found, mask=inside)
        found = tl.load(v + token.to(tl.int64) * v_stride + at, mask=inside)
        tl.store(values + place * WIDTH + at, found, mask=inside)


@triton.jit
def attend(
    out,  # one segment: [T, heads, D]; several: float32 [segments, tiles, heads, D], not divided yet
    notes,  # several: float32 [segments, tiles, heads, 2]: largest score, sum of weights
    q,
    q_stride,
    keys,  # [blocks, PAGE, KV_HEADS, D]
    values,
    tiles,  # several segments: of at most one token each
    tables,
    scale,  # of the scores, times log2(e)
    cap,  # 0: none; times log2(e) as the scores
    window,  # 0: none
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    BD: tl.constexpr,  # D filled up to a power of two
    PAGE: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,  # positions of a turn
    SEGMENTS: tl.constexpr,
    CAPPED: tl.constexpr,
    WIDE: tl.constexpr,
):
    tile = tl.program_id(0)
    kv = tl.program_id(1)
    segment = tl.program_id(2)
    first = tl.load(tiles + 4 * tile)
    count = tl.load(tiles + 4 * tile + 1)
    position = tl.load(tiles + 4 * tile + 2)
    table = tables + tl.load(tiles + 4 * tile + 3)
    m = tl.arange(0, BM)
    token = m // GROUP
    head = kv * GROUP + m % GROUP
    filled = token < count
    d = tl.arange(0, BD)
    real = d < D
    row = (first + token).to(tl.int64)
    at = row[:, None] * q_stride + (head * D)[:, None] + d[None, :]
    queries = tl.load(q + at, mask=filled[:, None] & real[None, :], other=0)
    own = position + token
    last = position + count - 1
    earliest = tl.maximum(0, position + 1 - window) if window > 0 else 0
    begin = earliest // PAGE
    pages = tl.where(count > 0, last // PAGE + 1 - begin, 0)  # a tile without tokens: nothing is read or written
    part = (pages + SEGMENTS - 1) // SEGMENTS
    start = begin + segment * part
    stop = tl.minimum(start + part, begin + pages)
    most = tl.full((BM,), float("-inf"), tl.float32)
    weight = tl.zeros((BM,), tl.float32)
    total = tl.zeros((BM, BD), tl.float32)
    n = tl.arange(0, BN)
    for begun in range(start * PAGE, stop * PAGE, BN):
        seen = begun + n
        index = seen // PAGE
        # What lies behind the last position was never written by this sequence: it may be anything, even NaN.
        held = (index < stop) & (seen <= last)
        block = tl.load(table + index, mask=held, other=0).to(tl.int64)
        line = (block * PAGE + seen % PAGE) * (KV_HEADS * D) + kv * D
        k = tl.load(keys + line[None, :] + d[:, None], mask=held[None, :] & real[:, None], other=0)
        scores = _dot(queries, k, tl.zeros((BM, BN), tl.float32), WIDE) * scale
        if CAPPED:
            scores = cap * (2.0 * tl.sigmoid(scores * (2.0 / cap)) - 1.0)
        allowed = held[None, :] & (seen[None, :] <= own[:, None])
        if window > 0:
            allowed = allowed & (seen[None, :] > own[:, None] - window)
        scores = tl.where(allowed, scores, float("-inf"))
        larger = tl.maximum(most, tl.max(scores, 1))
        # a row that has seen nothing yet: any finite number keeps the differences from being NaN
        level = tl.where(larger == float("-inf"), 0.0, larger)
        weights = tl.exp2(scores - level[:, None])
        shrunk = tl.exp2(most - level)
        weight = weight * shrunk + tl.sum(weights, 1)
        v = tl.load(values + line[:, None] + d[None, :], mask=held[:, None] & real[None, :], other=0)
        total = _dot(weights.to(v.dtype), v, total * shrunk[:, None], WIDE)
        most = larger
    if SEGMENTS == 1:
        target = (row * (KV_HEADS * GROUP) + head)[:, None] * D + d[None, :]
        found = total / tl.where(filled, weight, 1.0)[:, None]
        tl.store(out + target, found.to(out.dtype.element_ty), mask=filled[:, None] & real[None, :])
    else:
        # By tile, not by token: what a step has of prompts has no parts.
        place = ((segment.to(tl.int64) * tl.num_programs(0) + tile) * KV_HEADS + kv) * GROUP
        target = (m * D)[:, None] + d[None, :]
        tl.store(out + place * D + target, total, mask=filled[:, None] & real[None, :])
        note = notes + 2 * place + 2 * m
        tl.store(note, most, mask=filled)
        tl.store(note + 1, weight, mask=filled)


@triton.jit
def combine(
    out,  # [T, heads, D]
    parts,  # [segments, tiles, heads, D]
    notes,  # [segments, tiles, heads, 2]
    tiles,  # of one token each; of none: zeros
    HEADS: tl.constexpr,
    D: tl.constexpr,
    BD: tl.constexpr,
    SEGMENTS: tl.constexpr,
):
    tile = tl.program_id(0)
    token = tl.load(tiles + 4 * tile).to(tl.int64)
    count = tl.load(tiles + 4 * tile + 1)
    line = tile.to(tl.int64) * HEADS + tl.program_id(1)
    size = tl.num_programs(0).to(tl.int64) * HEADS
    d = tl.arange(0, BD)
    total = tl.zeros((BD,), tl.float32)
    if count > 0:
        most = tl.load(notes + 2 * line)
        for segment in tl.static_range(1, SEGMENTS):
            most = tl.maximum(most, tl.load(notes + 2 * (segment * size + line)))
        weight = 0.0
        for segment in tl.static_range(SEGMENTS):
            note = notes + 2 * (segment * size + line)
            factor = tl.exp2(tl.load(note) - most)
            weight += tl.load(note + 1) * factor
            total += tl.load(parts + (segment * size + line) * D + d, mask=d < D, other=0) * factor
        total = total / weight
    target = (token * HEADS + tl.program_id(1)) * D + d
    tl.store(out + target, total.to(out.dtype.element_ty), mask=d < D)
