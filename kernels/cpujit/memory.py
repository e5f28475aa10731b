"""What a compiled loop needs to reach tensors by address, and to share its work with other threads.

Addresses travel as integers: unpacking a tensor object costs more than many of these loops run for.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, njit, types
from numba.extending import intrinsic


@intrinsic
def next_item(typing: Any, counter: Any) -> Any:
    """The next number of a counter that threads share, from what it holds on: each number is given once.

    Threads that take their work so need no plan of who does what, and none waits while there is any left.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.atomic_rmw("add", arguments[0], ir.Constant(ir.IntType(64), 1), "monotonic")

    return types.int64(counter), generate


@intrinsic
def at(typing: Any, address: Any, kind: Any) -> Any:
    """The address as a pointer to ``kind`` (a numpy scalar type, literal in the code)."""
    pointer = types.CPointer(kind.dtype)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(pointer))

    return pointer(address, kind), generate


def _arrays_of(kind: Any) -> Any:
    @njit(inline="always")
    def array(address: int, shape: Any) -> Any:
        return carray(at(address, kind), shape)

    return array


int8s, int32s, int64s, float32s = (_arrays_of(kind) for kind in (np.int8, np.int32, np.int64, np.float32))
"""``int8s(address, shape)``, …: a C-contiguous array over memory; nothing is checked."""
