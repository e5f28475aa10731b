"""Working memory for compiled loops. Bodies allocate nothing: they could not say that there is none left, and numba
frees an array that a body made as soon as only its address is in use.
"""

from __future__ import annotations

import struct
import threading
from typing import Any

import numpy as np
from numba import njit

from cpujit.memory import at, int64s, next_item

# What stands before the places: how many are taken, how many there are, bytes of one. Places begin at cache lines.
_HEAD = struct.Struct("3q")
_LINE = 64


class _Memory:
    """:ivar head: what stands before the places, to be written to. :ivar address: its address, at a cache line."""

    def __init__(self, size: int) -> None:
        self.size = size
        whole = np.empty(size + _LINE, np.uint8)
        begin = -int(whole.ctypes.data) % _LINE
        self.head: Any = whole[begin : begin + size].data  # holds the memory
        self.address = int(whole.ctypes.data) + begin


class _Kept(threading.local):
    """A thread's own: it waits for each of its loops, so that the next one may write over all of it."""

    def __init__(self) -> None:
        self.memory = _Memory(0)


_kept = _Kept()


def scratch(size: int, places: int) -> int:
    """Address of ``places`` (at least 1) pieces of ``size`` bytes, for the calling thread's next :func:`run` alone.

    What they hold is left over from earlier loops. Raises :class:`MemoryError`. The largest so far is kept.
    """
    stride = -(-size // _LINE) * _LINE
    wanted = _LINE + stride * places
    if wanted > _kept.memory.size:
        _kept.memory = _Memory(wanted)
    memory = _kept.memory
    _HEAD.pack_into(memory.head, 0, 0, places, stride)
    return memory.address


@njit(inline="always")
def own_place(address: int) -> Any:
    """For a body, once and before its first item, with what :func:`scratch` gave: a piece that is its alone, or 0.

    0: all are taken, and the body has to return. Who has one takes items until there are none, so nothing is left out.
    """
    head = int64s(address, (3,))
    place = next_item(at(address, np.int64))
    return address + _LINE + place * head[2] if place < head[1] else 0
