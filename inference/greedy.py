"""The most likely token of each row of logits."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cpujit import Kernel, float32s, int64s, next_item, num_threads, run
from cpujit.greatest import greatest

# What the loop gets, an int64 each.
COUNTER, LOGITS, ROWS, WIDTH, CHOSEN = range(5)
_CALL = struct.Struct("5q")
_PART = 1024


def _choose(arguments: Any) -> None:
    given = int64s(arguments, (CHOSEN + 1,))
    width = given[WIDTH]
    chosen = int64s(given[CHOSEN], (given[ROWS],))
    while True:
        row = next_item(arguments)
        if row >= given[ROWS]:
            break
        logits = float32s(given[LOGITS] + 4 * row * width, (width,))
        # first which part, so that the search for the place is short
        part, most = 0, -np.float32(np.inf)
        for begin in range(0, width, _PART):
            found = greatest(given[LOGITS] + 4 * (row * width + begin), min(_PART, width - begin))
            if found > most:
                part, most = begin, found
        chosen[row] = part
        for index in range(part, min(width, part + _PART)):
            if logits[index] == most:
                chosen[row] = index
                break


CHOOSE = Kernel(_choose)


def most_likely(logits: Tensor) -> list[int]:
    """Of ``[n, vocab]`` the column of each row's largest number, the first of equals; some column where there is NaN.

    On the CPU a loop of our own: 16 rows of 49,152 in 0.1 ms, where ``argmax`` takes 0.25 and leaves torch's other
    threads spinning into the next step.
    """
    if logits.device.type != "cpu" or logits.dtype != torch.float32:
        return logits.argmax(dim=1).tolist()
    logits = logits.contiguous()
    chosen = np.zeros(len(logits), np.int64)
    call: Any = np.empty(CHOSEN + 1, np.int64)
    _CALL.pack_into(call.data, 0, 0, logits.data_ptr(), len(logits), logits.shape[1], chosen.ctypes.data)
    run(CHOOSE.address, call.ctypes.data, min(num_threads(), len(logits)))
    return chosen.tolist()
