"""fp32 matrix products on the CPU at the speed at which its memory delivers the weights.

A weight lies as panels of 32 output columns, ``[out / 32, in, 32]``: a tile of rows runs down a panel once, and asks
for the next panel while it computes. Each output is one sum over ``in`` in order: a row's bits do not depend on how
many rows share the call, nor on the threads.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import torch
from numba import njit
from torch import Tensor
from torch.nn import functional as F

from cpujit import Kernel, float32s, int64s, next_item, num_threads, run
from cpujit.tile import LANES, MOST_ROWS, supported, tile_2, tile_2_ahead

_COLUMNS = 2 * LANES
# Rows that meet a panel before the next one is fetched: 192 rows of x, 0.4–1.2 MB, stay near their core.
_BLOCK_ROWS = 192

# What the loop gets, an int64 each; from PANELS on it belongs to the weight. Strides are in bytes.
COUNTER, X, X_STRIDE, NUM_ROWS, ADDEND, ADDEND_STRIDE, OUT, CHUNKS = range(8)
PANELS, DEPTH, WIDTH, ZEROS = range(8, 12)
NUM_ARGUMENTS = 12
_CALL = struct.Struct("8q")


@njit(inline="never")
def _copy_edge(edge: Any, given: Any, first: int, count: int, column: int) -> None:
    """A tile at the right edge, of which only some columns exist."""
    width = given[WIDTH]
    for row in range(count):
        out = float32s(given[OUT] + 4 * ((first + row) * width + column), (width - column,))
        addend = float32s(given[ADDEND] + (first + row) * given[ADDEND_STRIDE] + 4 * column, (width - column,))
        for index in range(width - column):
            out[index] = edge[row, index] + addend[index]


def _multiply(arguments: Any) -> None:
    given = int64s(arguments, (NUM_ARGUMENTS,))
    num_rows, chunks, depth, width = given[NUM_ROWS], given[CHUNKS], given[DEPTH], given[WIDTH]
    panels = (width + _COLUMNS - 1) // _COLUMNS
    blocks = (num_rows + _BLOCK_ROWS - 1) // _BLOCK_ROWS
    edge = np.empty((MOST_ROWS, _COLUMNS), np.float32)
    while True:
        item = next_item(arguments)
        if item >= blocks * chunks:
            break
        begin = item // chunks * _BLOCK_ROWS
        rows = min(_BLOCK_ROWS, num_rows - begin)
        chunk = item % chunks
        last = (chunk + 1) * panels // chunks - 1
        for panel in range(chunk * panels // chunks, last + 1):
            w = given[PANELS] + panel * depth * _COLUMNS * 4
            place = (w, _COLUMNS * 4)
            column = panel * _COLUMNS
            tiles = (rows + MOST_ROWS - 1) // MOST_ROWS
            for tile in range(tiles):
                first = rows * tile // tiles
                count = rows * (tile + 1) // tiles - first
                first += begin
                x = (given[X] + first * given[X_STRIDE], given[X_STRIDE])
                if column + _COLUMNS > width:
                    tile_2(count, x, place, depth, (given[ZEROS], 0), (edge.ctypes.data, _COLUMNS * 4), 0)
                    _copy_edge(edge, given, first, count, column)
                    continue
                addend = (given[ADDEND] + first * given[ADDEND_STRIDE] + 4 * column, given[ADDEND_STRIDE])
                out = (given[OUT] + 4 * (first * width + column), 4 * width)
                if tile < 2 and panel < last:
                    # the two halves of the next panel
                    tile_2_ahead(count, x, place, depth, addend, out, w + depth * (_COLUMNS * 4 + 64 * tile))
                else:
                    tile_2(count, x, place, depth, addend, out, 0)


MULTIPLY = Kernel(_multiply)


class PanelLinear:
    """A :class:`~inference.models.linear.Linear` in fp32. Not thread-safe: one engine loop owns it.

    All linears of SmolLM2-135M, two threads of an EPYC with AVX-512, against oneDNN's blocked layout: 1 row 12.6 ms
    (14.1), 16 rows 14.4 (19.2), 32 rows 20.0 (28.9), 64 rows 37 (47), 1120 rows 648 (685).
    """

    _zeros = torch.zeros(0)

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        """:param weight: ``[out, in]``."""
        self.out_features, self.in_features = weight.shape
        missing = -self.out_features % _COLUMNS
        padded = F.pad(weight, (0, 0, 0, missing)) if missing else weight
        self._panels = padded.view(-1, _COLUMNS, self.in_features).transpose(1, 2).contiguous()
        self._bias = bias
        if len(PanelLinear._zeros) < self.out_features:
            PanelLinear._zeros = torch.zeros(self.out_features)
        # the bias is an addend whose every row is the same one
        self._addend = (bias if bias is not None else PanelLinear._zeros).contiguous()
        self._zero = PanelLinear._zeros
        self._arguments = np.zeros(NUM_ARGUMENTS, np.int64)
        self._arguments[PANELS:] = self._panels.data_ptr(), self.in_features, self.out_features, self._zero.data_ptr()
        self._call: Any = self._arguments.data
        self._address = int(self._arguments.ctypes.data)
        self._loop = MULTIPLY.address

    @staticmethod
    def available() -> bool:
        return supported()

    def __call__(self, x: Tensor) -> Tensor:
        return self._multiply(x, self._addend.data_ptr(), 0)

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        if self._bias is not None:
            return self(x).add_(residual)
        return self._multiply(x, residual.data_ptr(), 4 * residual.stride(0))

    def rows(self, ids: Tensor) -> Tensor:
        """``weight[ids]``, bit for bit and fresh: ``[T] → [T, in]``."""
        return self._panels[ids // _COLUMNS, :, ids % _COLUMNS].contiguous()

    def _multiply(self, x: Tensor, addend: int, addend_stride: int) -> Tensor:
        rows = x.shape[0]  # not len(x), which is Python code and takes a microsecond
        out = x.new_empty(rows, self.out_features)
        threads = num_threads()
        _CALL.pack_into(
            self._call,
            0,
            *(0, x.data_ptr(), 4 * x.stride(0), rows, addend, addend_stride, out.data_ptr(), threads),
        )
        run(self._loop, self._address, threads)
        return out
