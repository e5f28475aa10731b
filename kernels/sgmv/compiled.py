"""The loop of :mod:`sgmv.cpu`: fp32, any mix of slots and ranks, one call a site.

Threads take items, each a few rows of one slot at one slice, and do both products of them: shrink ``A x`` into a
scratch of ``r`` numbers a row, then expand straight into ``y``. No item waits for another, none writes where another
does, and the order of each row's sums depends on its adapter alone: its numbers are the same bits in any batch and on
any number of threads.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from cpujit import Kernel, float32s, int64s, next_item, own_place
from sgmv.plan import MOST_ROWS

# What the loop gets, an int64 each; from INPUTS on it belongs to the site and seldom changes.
COUNTER, Y, Y_STRIDE, X, X_STRIDE, ITEMS, NUM_ITEMS, ROWS, SCRATCH = range(9)
INPUTS, SLICES, NUM_SLICES, TABLE, SCALING, NUM_SLOTS, MAX_RANK = range(9, 16)
NUM_ARGUMENTS = 16

# Columns of y that one pass of expand handles: 8 rows of B, 8 KB, stay in the nearest cache for all rows of an item.
_COLUMNS = 256


# Rows are passed one by one, each an array of its own that is known to be contiguous: slices of a matrix are not, and
# their loops would run an element at a time. A matrix is its address and the length of its rows.
@njit(inline="always")
def _row(matrix: Any, row: int, first: int, width: int) -> Any:
    return float32s(matrix[0] + 4 * (row * matrix[1] + first), (width,))


# A dot product may be summed in any order as long as it is always the same one: compiled once, it is.
@njit(fastmath={"contract", "reassoc", "nsz"}, inline="never")
def _dot(a: Any, x: Any) -> Any:
    total = np.float32(0)
    for k in range(len(x)):
        total += a[k] * x[k]
    return total


@njit(fastmath={"contract", "reassoc", "nsz"}, inline="never")
def _dot4(a0: Any, a1: Any, a2: Any, a3: Any, x: Any) -> Any:
    s0 = s1 = s2 = s3 = np.float32(0)
    for k in range(len(x)):
        s0 += a0[k] * x[k]
        s1 += a1[k] * x[k]
        s2 += a2[k] * x[k]
        s3 += a3[k] * x[k]
    return s0, s1, s2, s3


@njit(fastmath={"contract"}, inline="never")
def _add(y: Any, h: Any, b: Any) -> None:
    for c in range(len(y)):
        y[c] += h * b[c]


@njit(fastmath={"contract"}, inline="never")
def _add8(  # noqa: PLR0917
    y: Any, h: Any, b0: Any, b1: Any, b2: Any, b3: Any, b4: Any, b5: Any, b6: Any, b7: Any
) -> None:
    h0, h1, h2, h3, h4, h5, h6, h7 = h[0], h[1], h[2], h[3], h[4], h[5], h[6], h[7]
    for c in range(len(y)):
        v = y[c] + h0 * b0[c] + h1 * b1[c] + h2 * b2[c] + h3 * b3[c]
        y[c] = v + h4 * b4[c] + h5 * b5[c] + h6 * b6[c] + h7 * b7[c]


@njit(inline="never")
def _shrink(h: Any, a: Any, x: Any, rows: Any, rank: int, scaling: Any) -> None:  # noqa: PLR0917
    """``h[i, :rank] = scaling · A x[rows[i]]``."""
    inputs = a[1]
    whole = rank - rank % 4
    for j in range(0, whole, 4):
        a0, a1 = _row(a, j, 0, inputs), _row(a, j + 1, 0, inputs)
        a2, a3 = _row(a, j + 2, 0, inputs), _row(a, j + 3, 0, inputs)
        for i in range(len(rows)):
            s0, s1, s2, s3 = _dot4(a0, a1, a2, a3, _row(x, rows[i], 0, inputs))
            h[i, j], h[i, j + 1], h[i, j + 2], h[i, j + 3] = scaling * s0, scaling * s1, scaling * s2, scaling * s3
    for j in range(whole, rank):
        for i in range(len(rows)):
            h[i, j] = scaling * _dot(_row(a, j, 0, inputs), _row(x, rows[i], 0, inputs))


@njit(inline="never")
def _expand(y: Any, start: int, b: Any, h: Any, rows: Any, rank: int) -> None:  # noqa: PLR0917
    """``y[rows[i], start : start + width] += B h[i, :rank]``, where ``width`` is the length of B's rows."""
    whole = rank - rank % 8
    for first in range(0, b[1], _COLUMNS):
        count = min(_COLUMNS, b[1] - first)
        for j in range(0, whole, 8):
            b0, b1 = _row(b, j, first, count), _row(b, j + 1, first, count)
            b2, b3 = _row(b, j + 2, first, count), _row(b, j + 3, first, count)
            b4, b5 = _row(b, j + 4, first, count), _row(b, j + 5, first, count)
            b6, b7 = _row(b, j + 6, first, count), _row(b, j + 7, first, count)
            for i in range(len(rows)):
                _add8(_row(y, rows[i], start + first, count), h[i, j:], b0, b1, b2, b3, b4, b5, b6, b7)
        for j in range(whole, rank):
            for i in range(len(rows)):
                _add(_row(y, rows[i], start + first, count), h[i, j], _row(b, j, first, count))


def _sgmv(arguments: Any) -> None:
    given = int64s(arguments, (NUM_ARGUMENTS,))
    num_slices = given[NUM_SLICES]
    slices = int64s(given[SLICES], (num_slices,))
    table = int64s(given[TABLE], (given[NUM_SLOTS], num_slices, 3))
    factors = float32s(given[SCALING], (given[NUM_SLOTS], num_slices))
    items = int64s(given[ITEMS], (given[NUM_ITEMS], 3))
    place = own_place(given[SCRATCH])
    if place == 0:
        return
    scratch = float32s(place, (MOST_ROWS, given[MAX_RANK]))
    x, y = (given[X], given[X_STRIDE]), (given[Y], given[Y_STRIDE])
    while True:
        item = next_item(arguments)
        if item >= given[NUM_ITEMS] * num_slices:
            break
        index, item = item % num_slices, item // num_slices
        slot = items[item, 0]
        rank = table[slot, index, 2] if slot < given[NUM_SLOTS] else 0
        if rank > 0:
            rows = int64s(given[ROWS] + 8 * items[item, 1], (items[item, 2],))
            start = 0
            for before in range(index):
                start += slices[before]
            a, b = (table[slot, index, 0], given[INPUTS]), (table[slot, index, 1], slices[index])
            _shrink(scratch, a, x, rows, rank, factors[slot, index])
            _expand(y, start, b, scratch, rows, rank)


SGMV = Kernel(_sgmv)
