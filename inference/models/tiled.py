"""What linears of compiled tiles share, whatever their weights look like: the call, its checks, the right edge.

A weight lies as panels of 32 output columns. An item of work is up to 192 rows by a run of panels.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import torch
from numba import njit
from torch import Tensor
from torch.nn import functional as F

from cpujit import Kernel, float32s, num_threads, run, scratch
from cpujit.tile import LANES

COLUMNS = 2 * LANES
# Rows that meet a panel before the next one is fetched: 192 rows of x, 0.4–1.2 MB, stay near their core.
BLOCK_ROWS = 192

# What the loops get, an int64 each; from PANELS on it belongs to the weight. Strides are in bytes.
COUNTER, X, X_STRIDE, NUM_ROWS, ADDEND, ADDEND_STRIDE, OUT, CHUNKS, SCRATCH = range(9)
PANELS, SCALES, ZEROS, DEPTH, WIDTH = range(9, 14)
NUM_ARGUMENTS = 14
_CALL = struct.Struct("9q")


@njit(inline="never")
def copy_edge(edge: int, given: Any, first: int, count: int, column: int) -> None:
    """A tile at the right edge, of which only some columns exist. :param edge: where it lies, 32 columns wide."""
    width = given[WIDTH]
    for row in range(count):
        out = float32s(given[OUT] + 4 * ((first + row) * width + column), (width - column,))
        addend = float32s(given[ADDEND] + (first + row) * given[ADDEND_STRIDE] + 4 * column, (width - column,))
        tile = float32s(edge + 4 * row * COLUMNS, (width - column,))
        for index in range(width - column):
            out[index] = tile[index] + addend[index]


class TiledLinear:
    """A :class:`~inference.models.linear.Linear` of fp32 in and out. Not thread-safe: one engine loop owns it.

    :param panels: the weight, whole panels; ``scales`` as the loop wants them, or ``None``.
    """

    def __init__(
        self, loop: Kernel, shape: torch.Size, bias: Tensor | None, panels: Tensor, scales: Tensor | None = None
    ) -> None:
        self.out_features, self.in_features = shape
        self._panels, self._scales, self._bias = panels, scales, bias
        self._zeros = _zeros(-(-self.out_features // COLUMNS) * COLUMNS)
        # the bias is an addend whose every row is the same one
        self._addend = (bias if bias is not None else self._zeros).contiguous()
        self._arguments = np.zeros(NUM_ARGUMENTS, np.int64)
        self._arguments[PANELS] = panels.data_ptr()
        self._arguments[SCALES] = scales.data_ptr() if scales is not None else 0
        self._arguments[ZEROS:] = self._zeros.data_ptr(), self.in_features, self.out_features
        self._call: Any = self._arguments.data
        self._address = int(self._arguments.ctypes.data)
        self._loop = loop.address

    def __call__(self, x: Tensor) -> Tensor:
        return self._multiply(x, self._addend.data_ptr(), 0)

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        _check("residual", residual, self.out_features)
        if residual.shape[0] != x.shape[0]:
            raise ValueError(f"residual: {residual.shape[0]} rows, x has {x.shape[0]}")
        if self._bias is not None:
            return self(x).add_(residual)
        return self._multiply(x, residual.data_ptr(), 4 * residual.stride(0))

    def _scratch_size(self, rows: int) -> int:
        """Bytes that each thread needs beside what it reads and writes."""
        raise NotImplementedError

    def _multiply(self, x: Tensor, addend: int, addend_stride: int) -> Tensor:
        _check("x", x, self.in_features)
        rows = x.shape[0]  # not len(x), which is Python code and takes a microsecond
        out = x.new_empty(rows, self.out_features)
        threads = num_threads()
        size = self._scratch_size(rows)
        places = scratch(size, threads) if size else 0
        call = (0, x.data_ptr(), 4 * x.stride(0), rows, addend, addend_stride, out.data_ptr(), threads, places)
        _CALL.pack_into(self._call, 0, *call)
        run(self._loop, self._address, threads)
        return out


def whole_panels(weight: Tensor) -> Tensor:
    """``[out, …]`` with rows of zeros after the last, so that panels are full."""
    missing = -len(weight) % COLUMNS
    return F.pad(weight, (0, 0) * (weight.dim() - 1) + (0, missing)) if missing else weight


def _check(name: str, tensor: Tensor, columns: int) -> None:
    """The loops read by address: what is not as they expect would be other memory."""
    if tensor.dim() != 2 or tensor.shape[1] != columns:
        raise ValueError(f"{name}: shape {tuple(tensor.shape)}, expected [rows, {columns}]")
    if tensor.dtype != torch.float32 or not tensor.is_cpu:
        raise ValueError(f"{name}: {tensor.dtype} on {tensor.device.type}, expected float32 on the CPU")
    if tensor.stride(1) != 1 and columns > 1:
        raise ValueError(f"{name}: its last dimension has to be contiguous")


_shared_zeros = torch.zeros(0)


def _zeros(count: int) -> Tensor:
    """At least so many; all linears without a bias read the same ones."""
    global _shared_zeros  # noqa: PLW0603 grows to the widest weight's size
    if len(_shared_zeros) < count:
        _shared_zeros = torch.zeros(count)
    return _shared_zeros
