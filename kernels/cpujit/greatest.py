"""The greatest of many float32 numbers, sixteen times as fast as by comparing them one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from cpujit.memory import int32s


@intrinsic
def _as_float(typing: Any, bits: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(builder.trunc(arguments[0], ir.IntType(32)), ir.FloatType())

    return types.float32(types.int64), generate


@njit(inline="always")
def _ordered(bits: Any) -> Any:
    """Whole numbers in the order of the floats whose bits these are, and back: below 0 it is the other way round."""
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@njit(inline="never")
def greatest(address: int, count: int) -> Any:
    """Of ``count`` (at least 1) numbers; NaN where there is one of positive sign, as arithmetic leaves it."""
    numbers = int32s(address, (count,))
    most = np.int64(-(1 << 31))  # compilers spread whole numbers over the lanes of a register, but not floats with NaN
    for index in range(count):
        number = _ordered(np.int64(numbers[index]))
        most = number if number > most else most
    return _as_float(_ordered(most))
