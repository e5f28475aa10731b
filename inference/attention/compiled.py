"""The loops of :mod:`inference.attention.panel_backend`: one stores a step's K and V, one attends all its rows.

K of a block lies ``[kv_heads, D, block]``, V ``[kv_heads, block, D]``: both are then what a tile multiplies with
(see :mod:`cpujit.tile`), 16 positions of K at a time and 32 columns of V. A task is one KV head of one *item*: either
one token, whose query heads of that group are the tile's rows, or up to 12 tokens of one row, head by head.

Only the row's own blocks are read, each whole: of positions that a query may not see, the score is thrown away, and V
gets the weight 0 if it lies in the window's first block or later in the same chunk of the same row, or is not touched.
No number depends on how many rows share the step.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from cpujit import Kernel, float32s, int64s, next_item
from cpujit.exponential import exp
from cpujit.greatest import greatest
from cpujit.places import own_place
from cpujit.tile import LANES, MOST_ROWS, tile_1, tile_1_ahead, tile_2

# What both loops get, an int64 each. Strides are in bytes.
COUNTER, ITEMS, NUM_ITEMS, TABLES, KEYS, VALUES = range(6)
KV_HEADS, DIM, BLOCK, GROUP, SCRATCH = range(6, 11)
K, K_STRIDE, V, V_STRIDE = range(11, 15)
Q, Q_STRIDE, OUT, WINDOW, ZEROS = range(11, 16)
NUM_ARGUMENTS = 16

# One item of a step: its first token, how many, the position of the first, where the row's block table begins.
ITEM_FIELDS = 4


def _store(arguments: Any) -> None:
    given = int64s(arguments, (NUM_ARGUMENTS,))
    kv_heads, dim, block = given[KV_HEADS], given[DIM], given[BLOCK]
    items = int64s(given[ITEMS], (given[NUM_ITEMS], ITEM_FIELDS))
    while True:
        item = next_item(arguments)
        if item >= given[NUM_ITEMS]:
            break
        for index in range(items[item, 1]):
            token, position = items[item, 0] + index, items[item, 2] + index
            place = int64s(given[TABLES], (items[item, 3] + position // block + 1,))[items[item, 3] + position // block]
            offset = position % block
            for head in range(kv_heads):
                panel = (place * kv_heads + head) * dim * block
                k = float32s(given[K] + token * given[K_STRIDE] + 4 * head * dim, (dim,))
                v = float32s(given[V] + token * given[V_STRIDE] + 4 * head * dim, (dim,))
                keys = float32s(given[KEYS] + 4 * panel, (dim, block))
                values = float32s(given[VALUES] + 4 * (panel + offset * dim), (dim,))
                for d in range(dim):
                    keys[d, offset] = k[d]
                for d in range(dim):
                    values[d] = v[d]


# A sum may be taken in any order as long as it is always the same one for the same length: compiled once, it is.
@njit(inline="never", error_model="numpy", fastmath={"contract", "reassoc", "nsz"})
def _softmax(address: int, count: int, scale: Any) -> None:
    """In place. NaN makes all of it NaN."""
    most = greatest(address, count)
    numbers = float32s(address, (count,))
    total = np.float32(0)
    for index in range(len(numbers)):
        numbers[index] = exp((numbers[index] - most) * scale)
        total += numbers[index]
    inverse = np.float32(1) / total
    for index in range(len(numbers)):
        numbers[index] *= inverse


@njit(inline="never", error_model="numpy")
def _attend_rows(  # noqa: PLR0917
    given: Any, table: Any, kv: int, rows: int, q: Any, out: Any, position: int, step: int, scores: int
) -> None:
    """``rows`` queries, of which row r sees the positions up to ``position + r·step``."""
    kv_heads, dim, block = given[KV_HEADS], given[DIM], given[BLOCK]
    last = position + (rows - 1) * step
    earliest = max(0, position + 1 - given[WINDOW]) if given[WINDOW] > 0 else 0
    begin, end = earliest // block, last // block + 1
    shift = begin * block
    stride = 4 * (end - begin) * block
    zeros = (given[ZEROS], 0)
    for b in range(begin, end):
        panel = 4 * (table[b] * kv_heads + kv) * dim * block
        following = 4 * (table[min(b + 1, end - 1)] * kv_heads + kv) * dim * block
        for c in range(0, block, LANES):
            target = (scores + 4 * (b * block - shift + c), stride)
            # blocks lie anywhere: no hardware guesses the next one, nor that this one's V is wanted soon
            ahead = (given[KEYS] + following + 4 * c * dim, given[VALUES] + panel + 4 * c * dim)
            tile_1_ahead(rows, q, (given[KEYS] + panel + 4 * c, 4 * block), dim, zeros, target, ahead)
    scale = np.float32(1.0 / np.sqrt(dim))
    for row in range(rows):
        stop = position + row * step + 1 - shift
        start = max(0, stop - given[WINDOW]) if given[WINDOW] > 0 else 0
        _softmax(scores + row * stride + 4 * start, stop - start, scale)
        whole = float32s(scores + row * stride, (last + 1 - shift,))
        whole[:start] = 0
        whole[stop:] = 0
    for b in range(begin, end):
        depth = min(block, last + 1 - b * block)
        values = given[VALUES] + 4 * (table[b] * kv_heads + kv) * block * dim
        weights = (scores + 4 * (b * block - shift), stride)
        for c in range(0, dim, 2 * LANES):
            target = (out[0] + 4 * c, out[1])
            addend = zeros if b == begin else target
            if dim - c >= 2 * LANES:
                tile_2(rows, weights, (values + 4 * c, 4 * dim), depth, addend, target, 0)
            else:
                tile_1(rows, weights, (values + 4 * c, 4 * dim), depth, addend, target, 0)


def _attend(arguments: Any) -> None:
    given = int64s(arguments, (NUM_ARGUMENTS,))
    kv_heads, dim, group = given[KV_HEADS], given[DIM], given[GROUP]
    items = int64s(given[ITEMS], (given[NUM_ITEMS], ITEM_FIELDS))
    scores = own_place(given[SCRATCH])
    if scores == 0:
        return
    out_stride = 4 * kv_heads * group * dim
    while True:
        task = next_item(arguments)
        if task >= given[NUM_ITEMS] * kv_heads:
            break
        item, kv = task // kv_heads, task % kv_heads
        first, count, position = items[item, 0], items[item, 1], items[item, 2]
        most = (position + count - 1) // given[BLOCK] + 1
        table = int64s(given[TABLES] + 8 * items[item, 3], (most,))
        for head in range(0, group, MOST_ROWS if count == 1 else 1):
            start = 4 * (kv * group + head) * dim
            q, out = given[Q] + first * given[Q_STRIDE] + start, given[OUT] + first * out_stride + start
            if count == 1:
                heads = min(MOST_ROWS, group - head)
                _attend_rows(given, table, kv, heads, (q, 4 * dim), (out, 4 * dim), position, 0, scores)
            else:
                _attend_rows(given, table, kv, count, (q, given[Q_STRIDE]), (out, out_stride), position, 1, scores)


STORE, ATTEND = Kernel(_store), Kernel(_attend)
