"""A step's rows as bytes: what a rank needs to compute them, and nothing of how they are sampled."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from inference.core.step import Row


def pack(rows: Sequence[Row], block_size: int) -> bytes:
    """int32 in the machine's order: for each row its tokens' number, start, blocks' number and slot, tokens, blocks.

    Of a row's block table, as much as its positions reach into.
    """
    numbers = array("i")
    for row in rows:
        blocks = -(-(row.start + len(row.tokens)) // block_size)
        numbers.extend((len(row.tokens), row.start, blocks, row.slot))
        numbers.extend(row.tokens)
        numbers.extend(row.block_table[:blocks])
    return numbers.tobytes()


def unpack(data: bytes) -> list[Row]:
    """The inverse of :func:`pack`."""
    numbers = array("i")
    numbers.frombytes(data)
    rows: list[Row] = []
    at = 0
    while at < len(numbers):
        tokens, start, blocks, slot = numbers[at : at + 4]
        begin, middle = at + 4, at + 4 + tokens
        at = middle + blocks
        rows.append(Row(numbers[begin:middle].tolist(), start, numbers[middle:at].tolist(), slot))
    return rows
