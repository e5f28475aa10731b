"""fp32 matrix products on the CPU at the speed at which its memory delivers the weights.

A weight lies as panels of 32 output columns, ``[out / 32, in, 32]``: a tile of rows runs down a panel once, and asks
for the next panel while it computes. Each output is one sum over ``in`` in order: a row's bits do not depend on how
many rows share the call, nor on the threads.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from cpujit import Kernel, int64s, next_item, own_place
from cpujit.tile import MOST_ROWS, supported, tile_2, tile_2_ahead
from inference.models import tiled
from inference.models.tiled import (
    ADDEND,
    ADDEND_STRIDE,
    BLOCK_ROWS,
    CHUNKS,
    COLUMNS,
    DEPTH,
    NUM_ARGUMENTS,
    NUM_ROWS,
    OUT,
    PANELS,
    SCRATCH,
    WIDTH,
    X_STRIDE,
    ZEROS,
    X,
)


def _multiply(arguments: Any) -> None:
    given = int64s(arguments, (NUM_ARGUMENTS,))
    num_rows, chunks, depth, width = given[NUM_ROWS], given[CHUNKS], given[DEPTH], given[WIDTH]
    panels = (width + COLUMNS - 1) // COLUMNS
    blocks = (num_rows + BLOCK_ROWS - 1) // BLOCK_ROWS
    edge = 0
    if width % COLUMNS != 0:
        edge = own_place(given[SCRATCH])
        if edge == 0:
            return
    while True:
        item = next_item(arguments)
        if item >= blocks * chunks:
            break
        begin = item // chunks * BLOCK_ROWS
        rows = min(BLOCK_ROWS, num_rows - begin)
        chunk = item % chunks
        last = (chunk + 1) * panels // chunks - 1
        for panel in range(chunk * panels // chunks, last + 1):
            w = given[PANELS] + panel * depth * COLUMNS * 4
            place = (w, COLUMNS * 4)
            column = panel * COLUMNS
            tiles = (rows + MOST_ROWS - 1) // MOST_ROWS
            for tile in range(tiles):
                first = rows * tile // tiles
                count = rows * (tile + 1) // tiles - first
                first += begin
                x = (given[X] + first * given[X_STRIDE], given[X_STRIDE])
                if column + COLUMNS > width:
                    tile_2(count, x, place, depth, (given[ZEROS], 0), (edge, COLUMNS * 4), 0)
                    tiled.copy_edge(edge, given, first, count, column)
                    continue
                addend = (given[ADDEND] + first * given[ADDEND_STRIDE] + 4 * column, given[ADDEND_STRIDE])
                out = (given[OUT] + 4 * (first * width + column), 4 * width)
                if tile < 2 and panel < last:
                    # the two halves of the next panel
                    tile_2_ahead(count, x, place, depth, addend, out, w + depth * (COLUMNS * 4 + 64 * tile))
                else:
                    tile_2(count, x, place, depth, addend, out, 0)


MULTIPLY = Kernel(_multiply)


class PanelLinear(tiled.TiledLinear):
    """Weights in fp32.

    All linears of SmolLM2-135M, two threads of an EPYC with AVX-512, against oneDNN's blocked layout: 1 row 12.6 ms
    (14.1), 16 rows 14.4 (19.2), 32 rows 20.0 (28.9), 64 rows 37 (47), 1120 rows 648 (685).
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        """:param weight: ``[out, in]``."""
        panels = tiled.whole_panels(weight).view(-1, COLUMNS, weight.shape[1]).transpose(1, 2).contiguous()
        super().__init__(MULTIPLY, weight.shape, bias, panels)
        self._edge_size = 4 * MOST_ROWS * COLUMNS if self.out_features % COLUMNS else 0

    @staticmethod
    def available() -> bool:
        return supported()

    def rows(self, ids: Tensor) -> Tensor:
        """``weight[ids]``, bit for bit and fresh: ``[T] → [T, in]``."""
        return self._panels[ids // COLUMNS, :, ids % COLUMNS].contiguous()

    def _scratch_size(self, rows: int) -> int:
        return self._edge_size
