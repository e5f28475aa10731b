"""Keeps rows to what their masks allow."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cache

import numpy as np
import torch
from torch import Tensor

from inference.core.step import Row
from inference.parcel import Parcel

PATIENCE_SECONDS = 0.005
"""How long sampling waits for masks that the step was too short for: all rows together, once a step."""

# By the byte that says which of eight tokens are allowed: what is added to their logits. One gather and one add for 16
# rows of 49,152 tokens: 0.4 ms; unpacking to booleans and filling took 1.5.
_ADDED = np.where(np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little"), 0, -np.inf)


def apply_masks(logits: Tensor, rows: Sequence[Row]) -> set[int]:
    """Tokens that a row's mask does not allow get ``-inf``; rows whose mask is not there in time are left alone.

    Waits for masks, never for the device.

    :param logits: ``[n, vocab]``, float32, written to. :param rows: ``n``.
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
        parcel = Parcel()
        parcel.add("masked", np.array(masked, np.int64))
        parcel.add("packed", np.frombuffer(b"".join(masks), np.uint8))
        sent = parcel.send(logits.device)
        added = _table(logits.device).index_select(0, sent["packed"].int()).view(len(masks), -1)
        if len(masked) == len(logits):
            logits += added[:, : logits.shape[1]]
        else:
            logits.index_add_(0, sent["masked"], added[:, : logits.shape[1]])
    return late


@cache
def _table(device: torch.device) -> Tensor:
    """:data:`_ADDED`, ``[256, 8]`` float32; copied to a device once."""
    parcel = Parcel()
    parcel.add("added", _ADDED.astype(np.float32))
    return parcel.send(device)["added"].view(256, 8)
