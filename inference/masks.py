"""Keeps rows to what their masks allow."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from torch import Tensor

from inference.core.step import Row

PATIENCE_SECONDS = 0.005
"""How long sampling waits for masks that the step was too short for: all rows together, once a step."""

# What is added to the logits of eight tokens, by the byte that says which of them are allowed. One gather and one add
# for 16 rows of 49,152 tokens: 0.4 ms; unpacking to booleans and filling took 1.5.
_ADDED = torch.tensor([[0.0 if byte >> bit & 1 else float("-inf") for bit in range(8)] for byte in range(256)])


def apply_masks(logits: Tensor, rows: Sequence[Row]) -> set[int]:
    """Tokens that a row's mask does not allow get ``-inf``; rows whose mask is not there in time are left alone.

    :param logits: ``[n, vocab]``, written to. :param rows: ``n``.
    :returns: indices of the rows that were left alone: what is chosen for them means nothing.
    """
    late: set[int] = set()
    masked: list[int] = []
    masks: list[bytes] = []
    deadline: float | None = None
    for index, row in enumerate(rows):
        if row.mask is None:
            continue
        if deadline is None:
            deadline = time.monotonic() + PATIENCE_SECONDS
        mask = row.mask.take(max(0.0, deadline - time.monotonic()))
        if mask is None:
            late.add(index)
        else:
            masked.append(index)
            masks.append(mask)
    if masks:
        packed = torch.frombuffer(bytearray(b"".join(masks)), dtype=torch.uint8).view(len(masks), -1)
        added = _ADDED.to(logits.device)[packed.to(logits.device).long()].view(len(masks), -1)[:, : logits.shape[1]]
        if len(masked) == len(logits):
            logits += added
        else:
            logits[masked] += added
    return late
