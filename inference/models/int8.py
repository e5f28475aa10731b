"""int8 matrix products on the CPU: weights with a scale per output, activations with a scale per 64 numbers of a row.

    y[t, n] = w_scale[n] · Σ_s x_scale[t, s] · Σ_k round(x[t, k] / x_scale[t, s]) · round(w[n, k] / w_scale[n]) (+ bias)

where ``k`` runs over span ``s``. Scales are symmetric: the largest magnitude becomes 127. The sum of a span is exact,
those of the spans run in order, and scales are a row's own: its bits do not depend on which rows share the call.

SmolLM2-135M's perplexity rises by 2.7 % where activations have one scale a row (a few numbers are much larger than the
rest), by 0.2 % with one for each 64, and by as much with weights in int8 alone (2,048 tokens, the head in fp32).
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import torch
from numba import njit
from torch import Tensor
from torch.nn import functional as F

from cpujit import Kernel, float32s, int8s, int64s, next_item, num_threads, run
from cpujit.memory import int32s
from cpujit.tile import LANES
from cpujit.tile8 import GROUP, MOST_ROWS, SPAN, supported, tile8, tile8_ahead
from inference.errors import ConfigError

_COLUMNS = 2 * LANES
# Rows whose bytes a thread makes before it multiplies them: up to 0.3 MB, near their core.
_BLOCK_ROWS = 192
# Adding it leaves a number between -127 and 127, rounded, in the lowest byte of a float.
_ROUND_TO_BYTE = np.float32(3 * 2**22)

# What the loop gets, an int64 each; from PANELS on it belongs to the weight. Strides are in bytes.
COUNTER, X, X_STRIDE, NUM_ROWS, ADDEND, ADDEND_STRIDE, OUT, CHUNKS = range(8)
PANELS, SCALES, ZEROS, IN, WIDTH = range(8, 13)
NUM_ARGUMENTS = 13
_CALL = struct.Struct("8q")


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
def _quantise(given: Any, begin: int, rows: int, numbers: int, notes: int) -> None:
    """Rows ``begin … begin + rows`` of x as bytes, and the scale and start of each of their spans."""
    inputs = given[IN]
    spans = (inputs + SPAN - 1) // SPAN
    own = np.empty(SPAN, np.float32)
    for row in range(rows):
        out = int8s(numbers + row * spans * SPAN, (spans * SPAN,))
        scales, starts = (
            float32s(notes + 8 * row * spans, (2 * spans,)),
            int32s(notes + 8 * row * spans, (2 * spans,)),
        )
        for span in range(spans):
            address = given[X] + (begin + row) * given[X_STRIDE] + 4 * SPAN * span
            count = min(SPAN, inputs - span * SPAN)
            x, x_bits = float32s(address, (count,)), int32s(address, (count,))
            rounded, bits = float32s(own.ctypes.data, (count,)), int32s(own.ctypes.data, (count,))
            scale, total = _to_bytes(x, x_bits, rounded, bits, out[span * SPAN : span * SPAN + count])
            scales[2 * span] = scale
            starts[2 * span + 1] = -128 * total  # the weights carry 128 too much
        out[inputs:] = 0


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
    num_rows, chunks, width = given[NUM_ROWS], given[CHUNKS], given[WIDTH]
    spans = (given[IN] + SPAN - 1) // SPAN
    panels = (width + _COLUMNS - 1) // _COLUMNS
    blocks = (num_rows + _BLOCK_ROWS - 1) // _BLOCK_ROWS
    most = min(num_rows, _BLOCK_ROWS)
    numbers = np.empty(most * spans * SPAN, np.int8)
    notes = np.empty(most * spans, np.int64)
    edge = np.empty((MOST_ROWS, _COLUMNS), np.float32)
    ready = -1  # the block that this thread's bytes are of: each thread makes its own, which costs less than to wait
    while True:
        item = next_item(arguments)
        if item >= blocks * chunks:
            break
        block, chunk = item // chunks, item % chunks
        begin = block * _BLOCK_ROWS
        rows = min(_BLOCK_ROWS, num_rows - begin)
        if block != ready:
            _quantise(given, begin, rows, numbers.ctypes.data, notes.ctypes.data)
            ready = block
        last = (chunk + 1) * panels // chunks - 1
        for panel in range(chunk * panels // chunks, last + 1):
            w = given[PANELS] + panel * spans * SPAN * _COLUMNS
            column = panel * _COLUMNS
            place = (w, given[SCALES] + 4 * column)
            tiles = (rows + MOST_ROWS - 1) // MOST_ROWS
            for tile in range(tiles):
                first = rows * tile // tiles
                count = rows * (tile + 1) // tiles - first
                x = (
                    numbers.ctypes.data + first * spans * SPAN,
                    spans * SPAN,
                    notes.ctypes.data + 8 * first * spans,
                    8 * spans,
                )
                if column + _COLUMNS > width:
                    tile8(count, x, place, spans, (given[ZEROS], 0), (edge.ctypes.data, _COLUMNS * 4), 0)
                    _copy_edge(edge, given, begin + first, count, column)
                    continue
                addend = (given[ADDEND] + (begin + first) * given[ADDEND_STRIDE] + 4 * column, given[ADDEND_STRIDE])
                out = (given[OUT] + 4 * ((begin + first) * width + column), 4 * width)
                if tile < 2 and panel < last:
                    # the two halves of the next panel
                    tile8_ahead(count, x, place, spans, addend, out, w + spans * SPAN * _COLUMNS + tile * 1024 * spans)
                else:
                    tile8(count, x, place, spans, addend, out, 0)


MULTIPLY = Kernel(_multiply)


class Int8Linear:
    """A :class:`~inference.models.linear.Linear` of fp32 in and out. Not thread-safe: one engine loop owns it.

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
        self.out_features, self.in_features = weight.shape
        numbers, scales = quantise_weight(weight)
        missing = (-self.in_features % SPAN, -self.out_features % _COLUMNS)
        numbers = F.pad(numbers, (0, missing[0], 0, missing[1]))
        # One factor has to be unsigned: the weights, raised by 128. What that adds is taken off each span's sum.
        raised = numbers.to(torch.int16).add_(128).to(torch.uint8)
        self._panels = raised.view(-1, _COLUMNS, numbers.shape[1] // GROUP, GROUP).transpose(1, 2).contiguous()
        self._scales = F.pad(scales, (0, missing[1])).contiguous()
        self._bias = bias
        self._zeros = torch.zeros(self.out_features)
        # the bias is an addend whose every row is the same one
        self._addend = (bias if bias is not None else self._zeros).contiguous()
        held = (self._panels, self._scales, self._zeros)
        self._arguments = np.zeros(NUM_ARGUMENTS, np.int64)
        self._arguments[PANELS:] = *(tensor.data_ptr() for tensor in held), self.in_features, self.out_features
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

    def _multiply(self, x: Tensor, addend: int, addend_stride: int) -> Tensor:
        rows = len(x)
        out = x.new_empty(rows, self.out_features)
        threads = num_threads()
        _CALL.pack_into(
            self._call,
            0,
            *(0, x.data_ptr(), 4 * x.stride(0), rows, addend, addend_stride, out.data_ptr(), threads),
        )
        run(self._loop, self._address, threads)
        return out


def quantise_weight(weight: Tensor) -> tuple[Tensor, Tensor]:
    """``[out, in]`` → int8 numbers ``[out, in]`` and scales ``[out]``, with ``weight ≈ numbers · scales``."""
    scales = weight.abs().amax(1) / 127
    numbers = (weight / scales.clamp_min(torch.finfo(weight.dtype).tiny)[:, None]).round_().clamp_(-127, 127)
    return numbers.to(torch.int8), scales
