"""The loop of :mod:`sgmv.cpu`: fp32, any mix of slots and ranks, one call a site.

Threads take items, each a few rows of one slot, and do both products of them: shrink ``A x`` into a scratch of ``r``
numbers a row, then expand straight into ``y``. No row waits for another item, none is in two, and the order of each
row's sums depends on its adapter alone: its numbers are the same bits in any batch and on any number of threads.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from cpujit import Kernel, float32s, int64s, next_item
from sgmv.plan import MOST_ROWS

# What the loop gets, an int64 each; from INPUTS on it belongs to the site and seldom changes.
COUNTER, Y, Y_STRIDE, X, X_STRIDE, ITEMS, NUM_ITEMS, ROWS = range(8)
INPUTS, SLICES, NUM_SLICES, TABLE, SCALING, NUM_SLOTS, MAX_RANK = range(8, 15)
NUM_ARGUMENTS = 15

# Columns of y that one pass of expand handles: 8 rows of B, 8 KB, stay in the nearest cache for all rows of an item.
_COLUMNS = 256


# A dot product may be summed in any order as long as it is always the same one: compiled once, it is.
@njit(fastmath={"contract", "reassoc", "nsz"}, inline="never")
def _dot4(h: Any, a: Any, x: Any, scaling: Any) -> None:
    s0 = s1 = s2 = s3 = np.float32(0)
    for k in range(len(x)):
        s0 += a[0, k] * x[k]
        s1 += a[1, k] * x[k]
        s2 += a[2, k] * x[k]
        s3 += a[3, k] * x[k]
    h[0], h[1], h[2], h[3] = s0 * scaling, s1 * scaling, s2 * scaling, s3 * scaling


@njit(fastmath={"contract", "reassoc", "nsz"}, inline="never")
def _dot(a: Any, x: Any) -> Any:
    total = np.float32(0)
    for k in range(len(x)):
        total += a[k] * x[k]
    return total


@njit(fastmath={"contract"}, inline="never")
def _add8(y: Any, h: Any, b: Any, first: int) -> None:
    h0, h1, h2, h3, h4, h5, h6, h7 = h[0], h[1], h[2], h[3], h[4], h[5], h[6], h[7]
    b0, b1, b2, b3, b4, b5, b6, b7 = b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]
    for c in range(len(y)):
        k = first + c
        v = y[c] + h0 * b0[k] + h1 * b1[k] + h2 * b2[k] + h3 * b3[k]
        y[c] = v + h4 * b4[k] + h5 * b5[k] + h6 * b6[k] + h7 * b7[k]


@njit(fastmath={"contract"}, inline="never")
def _add(y: Any, h: Any, b: Any) -> None:
    for c in range(len(y)):
        y[c] += h * b[c]


@njit(inline="always")
def _row(base: int, stride: int, row: int, first: int, width: int) -> Any:
    return float32s(base + 4 * (row * stride + first), (width,))


@njit(inline="never")
def _shrink(h: Any, a: Any, scaling: Any, x: Any, rows: Any) -> None:
    rank, inputs = a.shape
    whole = rank - rank % 4
    for j in range(0, whole, 4):
        for i in range(len(rows)):
            _dot4(h[i, j : j + 4], a[j : j + 4], _row(x[0], x[1], rows[i], 0, inputs), scaling)
    for j in range(whole, rank):
        for i in range(len(rows)):
            h[i, j] = scaling * _dot(a[j], _row(x[0], x[1], rows[i], 0, inputs))


@njit(inline="never")
def _expand(h: Any, b: Any, y: Any, start: int, rows: Any) -> None:
    rank, width = b.shape
    whole = rank - rank % 8
    for first in range(0, width, _COLUMNS):
        count = min(_COLUMNS, width - first)
        for j in range(0, whole, 8):
            for i in range(len(rows)):
                _add8(_row(y[0], y[1], rows[i], start + first, count), h[i, j : j + 8], b[j : j + 8], first)
        for j in range(whole, rank):
            for i in range(len(rows)):
                _add(_row(y[0], y[1], rows[i], start + first, count), h[i, j], b[j, first : first + count])


def _sgmv(arguments: Any) -> None:
    given = int64s(arguments, (NUM_ARGUMENTS,))
    num_slices = given[NUM_SLICES]
    slices = int64s(given[SLICES], (num_slices,))
    table = int64s(given[TABLE], (given[NUM_SLOTS], num_slices, 3))
    factors = float32s(given[SCALING], (given[NUM_SLOTS], num_slices))
    items = int64s(given[ITEMS], (given[NUM_ITEMS], 3))
    scratch = np.empty((MOST_ROWS, given[MAX_RANK]), np.float32)
    while True:
        item = next_item(arguments)
        if item >= given[NUM_ITEMS]:
            break
        slot = items[item, 0]
        if slot >= given[NUM_SLOTS]:
            continue
        rows = int64s(given[ROWS] + 8 * items[item, 1], (items[item, 2],))
        start = 0
        for index in range(num_slices):
            rank = table[slot, index, 2]
            if rank > 0:
                a = float32s(table[slot, index, 0], (rank, given[INPUTS]))
                b = float32s(table[slot, index, 1], (rank, slices[index]))
                _shrink(scratch, a, factors[slot, index], (given[X], given[X_STRIDE]), rows)
                _expand(scratch, b, (given[Y], given[Y_STRIDE]), start, rows)
            start += slices[index]


SGMV = Kernel(_sgmv)
