"""A step's sequences as the tiles that the kernels compute, worked out on the host and copied once for all layers."""

from __future__ import annotations

import collections.abc
from dataclasses import dataclass

import torch
from torch import Tensor

from paged_attention.errors import AttentionArgumentError


@dataclass(frozen=True, slots=True)
class Sequence:
    """``count`` new tokens of a sequence, the first at position ``start``; ``blocks`` hold all up to the last."""

    start: int
    count: int
    blocks: collections.abc.Sequence[int]


@dataclass(frozen=True, slots=True)
class Tiles:
    """:ivar decode: ``[n, 4]`` int32: first token, tokens, position of the first, where its blocks begin in ``tables``:
        those of one token, or of none: the kernels make zeros of such a token, and read nothing.
    :ivar prefill: the others, at most ``most`` tokens each.
    :ivar tables: int32, all sequences' block tables.
    :ivar places: ``[T]`` int32, where each token's K and V go; negative: nowhere.
    """

    decode: Tensor
    prefill: Tensor
    tables: Tensor
    places: Tensor

    @property
    def num_tokens(self) -> int:
        return len(self.places)

    @classmethod
    def of(
        cls,
        sequences: collections.abc.Sequence[Sequence],
        *,
        block_size: int,
        num_blocks: int,
        most: int,
        device: torch.device,
    ) -> Tiles:
        """:param most: tokens of one tile. Raises :class:`AttentionArgumentError` for blocks that are not there."""
        decode: list[int] = []
        prefill: list[int] = []
        tables: list[int] = []
        places: list[int] = []
        for index, sequence in enumerate(sequences):
            own = blocks_of(sequence, index, block_size, num_blocks)
            single = sequence.count == 1
            for begin in range(0, sequence.count, most):
                count = min(most, sequence.count - begin)
                tile = (len(places) + begin, count, sequence.start + begin, len(tables))
                (decode if single else prefill).extend(tile)
            positions = range(sequence.start, sequence.start + sequence.count)
            places += [own[position // block_size] * block_size + position % block_size for position in positions]
            tables += own
        tables += [0] * (-len(tables) % 4)  # places begin at a multiple of 16 bytes: one kernel, not two
        sizes = [len(part) for part in (decode, prefill, tables, places)]
        numbers, pinned = decode + prefill + tables + places, device.type == "cuda"
        given = torch.tensor(numbers, dtype=torch.int32, device="cpu", pin_memory=pinned)
        parts = given.to(device, non_blocking=True).split_with_sizes(sizes)
        return cls(parts[0].view(-1, 4), parts[1].view(-1, 4), parts[2], parts[3])


def blocks_of(sequence: Sequence, index: int, block_size: int, num_blocks: int) -> list[int]:
    """Those that hold the sequence's positions. The kernels read by number: beyond a short table lies another's.

    :raises AttentionArgumentError: there are too few, or some that the pool does not have.
    """
    if sequence.count < 1 or sequence.start < 0:
        raise AttentionArgumentError("sequences", f"sequence {index}: {sequence.count} tokens from {sequence.start}")
    length = sequence.start + sequence.count
    needed = -(-length // block_size)
    own = list(sequence.blocks[:needed])
    if len(own) < needed:
        message = f"sequence {index}: {len(own)} blocks of {block_size} for {length} positions"
        raise AttentionArgumentError("sequences", message)
    if min(own) < 0 or max(own) >= num_blocks:
        message = f"sequence {index}: blocks {min(own)} … {max(own)}, there are {num_blocks}"
        raise AttentionArgumentError("sequences", message)
    return own
