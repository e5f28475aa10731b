"""``exp`` that a compiler can spread over the lanes of a register; the C library's is a call for each number."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

_LOG2_E = np.float32(1.4426950408889634)
# ln 2 in two parts: the first has so few digits that its products with whole numbers are exact
_LN2_HIGH, _LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
# Added and subtracted again it rounds to a whole number, which meanwhile stands in the lowest bits.
_ROUND = np.float32(12582912.0)
_LEAST, _MOST = np.float32(-87.0), np.float32(88.0)
# minimax polynomial of (exp(r) - 1 - r) / r² on ± ln 2 / 2 (Cephes)
_C5, _C4, _C3 = np.float32(1.9875691500e-4), np.float32(1.3981999507e-3), np.float32(8.3334519073e-3)
_C2, _C1, _C0 = np.float32(4.1665795894e-2), np.float32(1.6666665459e-1), np.float32(5.0000001201e-1)
_ONE = np.float32(1.0)


@intrinsic
def _times_power_of_two(typing: Any, number: Any, rounded: Any) -> Any:
    """``number · 2ⁿ``, n the whole number in the lowest bits of ``rounded``."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        bits = [builder.bitcast(argument, ir.IntType(32)) for argument in arguments]
        exponent = builder.shl(bits[1], ir.Constant(ir.IntType(32), 23))
        return builder.bitcast(builder.add(bits[0], exponent), ir.FloatType())

    return types.float32(types.float32, types.float32), generate


@njit(forceinline=True, fastmath={"contract"})
def exp(x: Any) -> Any:
    """``e^x`` of a float32, within 2 units in the last place; below -87 it is e⁻⁸⁷, above 88 e⁸⁸. NaN is NaN."""
    x = _LEAST if x < _LEAST else x
    x = _MOST if x > _MOST else x
    rounded = x * _LOG2_E + _ROUND
    n = rounded - _ROUND
    r = x - n * _LN2_HIGH
    r = r - n * _LN2_LOW
    p = ((((_C5 * r + _C4) * r + _C3) * r + _C2) * r + _C1) * r + _C0
    return _times_power_of_two(p * (r * r) + r + _ONE, rounded)
