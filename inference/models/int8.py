"""int8 matrix products on the CPU: weights with a scale per output, activations with a scale per 64 numbers of a row.

    y[t, n] = w_scale[n] · Σ_s x_scale[t, s] · Σ_k round(x[t, k] / x_scale[t, s]) · round(w[n, k] / w_scale[n]) (+ bias)

where ``k`` runs over span ``s``. Scales are symmetric: the largest magnitude becomes 127. The sum of a span is exact,
those of the spans run in order, and scales are a row's own: its bits do not depend on which rows share the call.

SmolLM2-135M's perplexity rises by 2.7 % where activations have one scale a row (a few numbers are much larger than the
rest), by 0.2 % with one for each 64, and by as much with weights in int8 alone (2,048 tokens, the head in fp32).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numba import njit
from torch import Tensor
from torch.nn import functional as F

from cpujit import Kernel, float32s, int8s, int32s, int64s, next_item, own_place
from cpujit.tile8 import GROUP, MOST_ROWS, SPAN, supported, tile8, tile8_ahead
from inference.errors import ConfigError
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
    SCALES,
    SCRATCH,
    WIDTH,
    X_STRIDE,
    ZEROS,
    X,
)

# Adding it leaves a number between -127 and 127, rounded, in the lowest byte of a float.
_ROUND_TO_BYTE = np.float32(3 * 2**22)
# Bytes of a thread's scratch before its block's rows: a tile at the right edge, one span's rounded numbers.
_EDGE, _ROUNDED = 4 * MOST_ROWS * COLUMNS, 4 * SPAN
_FIXED = _EDGE + _ROUNDED


@njit(fastmath={"contract"}, inline="never")
def _to_bytes(x: Any, bits: Any, rounded: Any, rounded_bits: Any, out: Any) -> Any:
    """Writes ``round(x / scale)``; returns the scale and the sum of those. :param bits: ``x``, read as integers."""
    # Without their sign, floats compare as integers do, infinity and NaN above all others: those spoil their own row.
    top = np.int32(0)
    for k in range(len(bits)):
        top = max(top, bits[k] & np.int32(0x7FFFFFFF))
    rounded_bits[0] = top
    largest = rounded[0]
    inverse = np.float32(0) if top == 0 else np.float32(127) / largest
    total = np.int32(0)
    for k in range(len(x)):
        rounded[k] = x[k] * inverse + _ROUND_TO_BYTE
    for k in range(len(x)):
        number = np.int8(rounded_bits[k] & 255)
        out[k] = number
        total += np.int32(number)
    return largest / np.float32(127), total


@njit(inline="never")
def _quantise(given: Any, begin: int, rows: int, own: int, numbers: int, notes: int) -> None:  # noqa: PLR0917
    """Rows ``begin … begin + rows`` of x as bytes, and the scale and start of each of their spans."""
    inputs = given[DEPTH]
    spans = (inputs + SPAN - 1) // SPAN
    for row in range(rows):
        out = int8s(numbers + row * spans * SPAN, (spans * SPAN,))
        note = notes + 8 * row * spans
        scales, starts = float32s(note, (2 * spans,)), int32s(note, (2 * spans,))
        for span in range(spans):
            address = given[X] + (begin + row) * given[X_STRIDE] + 4 * SPAN * span
            count = min(SPAN, inputs - span * SPAN)
            x, x_bits = float32s(address, (count,)), int32s(address, (count,))
            rounded, bits = float32s(own, (count,)), int32s(own, (count,))
            scale, total = _to_bytes(x, x_bits, rounded, bits, out[span * SPAN : span * SPAN + count])
            scales[2 * span] = scale
            starts[2 * span + 1] = -128 * total  # the weights carry 128 too much
        out[inputs:] = 0


@njit(inline="never")
def _panel(  # noqa: PLR0917
    given: Any, panel: int, last: int, begin: int, rows: int, edge: int, numbers: int, notes: int
) -> None:
    """All of a block's rows by one panel."""
    width = given[WIDTH]
    spans = (given[DEPTH] + SPAN - 1) // SPAN
    w = given[PANELS] + panel * spans * SPAN * COLUMNS
    column = panel * COLUMNS
    place = (w, given[SCALES] + 4 * column)
    tiles = (rows + MOST_ROWS - 1) // MOST_ROWS
    for tile in range(tiles):
        first = rows * tile // tiles
        count = rows * (tile + 1) // tiles - first
        x = (numbers + first * spans * SPAN, spans * SPAN, notes + 8 * first * spans, 8 * spans)
        if column + COLUMNS > width:
            tile8(count, x, place, spans, (given[ZEROS], 0), (edge, COLUMNS * 4), 0)
            tiled.copy_edge(edge, given, begin + first, count, column)
            continue
        addend = (given[ADDEND] + (begin + first) * given[ADDEND_STRIDE] + 4 * column, given[ADDEND_STRIDE])
        out = (given[OUT] + 4 * ((begin + first) * width + column), 4 * width)
        if tile < 2 and panel < last:
            # the two halves of the next panel
            tile8_ahead(count, x, place, spans, addend, out, w + spans * SPAN * COLUMNS + tile * 1024 * spans)
        else:
            tile8(count, x, place, spans, addend, out, 0)


def _multiply(arguments: Any) -> None:
    given = int64s(arguments, (NUM_ARGUMENTS,))
    num_rows, chunks = given[NUM_ROWS], given[CHUNKS]
    spans = (given[DEPTH] + SPAN - 1) // SPAN
    panels = (given[WIDTH] + COLUMNS - 1) // COLUMNS
    blocks = (num_rows + BLOCK_ROWS - 1) // BLOCK_ROWS
    edge = own_place(given[SCRATCH])
    if edge == 0:
        return
    notes = edge + _FIXED
    numbers = notes + 8 * min(num_rows, BLOCK_ROWS) * spans
    ready = -1  # the block that this thread's bytes are of: each thread makes its own, which costs less than to wait
    while True:
        item = next_item(arguments)
        if item >= blocks * chunks:
            break
        block, chunk = item // chunks, item % chunks
        begin = block * BLOCK_ROWS
        rows = min(BLOCK_ROWS, num_rows - begin)
        if block != ready:
            _quantise(given, begin, rows, edge + _EDGE, numbers, notes)
            ready = block
        last = (chunk + 1) * panels // chunks - 1
        for panel in range(chunk * panels // chunks, last + 1):
            _panel(given, panel, last, begin, rows, edge, numbers, notes)


MULTIPLY = Kernel(_multiply)


class Int8Linear(tiled.TiledLinear):
    """Weights in int8.

    All linears of SmolLM2-135M without and with its head, one thread of an EPYC with AVX-512, ms: 16 rows 6.0 and 7.2
    (fp32 panels 17.6 and 22.2; oneDNN's int8 9.5 and 11.3, quantising the activations not counted), 1 row 4.2 and 5.0
    (14.2 and 17.5), measured with one scale a row.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        """:param weight: ``[out, in]``. Raises :class:`ConfigError` where it is not finite or the CPU cannot do it."""
        if not Int8Linear.available():
            raise ConfigError("int8 weights need a CPU with AVX-512 VNNI")
        if not bool(weight.isfinite().all()):
            raise ConfigError("int8 weights: a weight is not finite")
        numbers, scales = quantise_weight(weight)
        numbers = tiled.whole_panels(F.pad(numbers, (0, -weight.shape[1] % SPAN)))
        # One factor has to be unsigned: the weights, raised by 128. What that adds is taken off each span's sum.
        raised = numbers.to(torch.int16).add_(128).to(torch.uint8)
        panels = raised.view(-1, COLUMNS, numbers.shape[1] // GROUP, GROUP).transpose(1, 2).contiguous()
        super().__init__(MULTIPLY, weight.shape, bias, panels, tiled.whole_panels(scales).contiguous())
        self._row_size = (SPAN + 8) * (numbers.shape[1] // SPAN)

    @staticmethod
    def available() -> bool:
        return supported()

    def _scratch_size(self, rows: int) -> int:
        return _FIXED + self._row_size * min(rows, BLOCK_ROWS)


def quantise_weight(weight: Tensor) -> tuple[Tensor, Tensor]:
    """``[out, in]`` → int8 numbers ``[out, in]`` and scales ``[out]``, with ``weight ≈ numbers · scales``."""
    scales = weight.abs().amax(1) / 127
    numbers = (weight / scales.clamp_min(torch.finfo(weight.dtype).tiny)[:, None]).round_().clamp_(-127, 127)
    return numbers.to(torch.int8), scales
