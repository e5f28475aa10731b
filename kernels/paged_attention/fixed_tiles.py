"""The tiles of a decode step in places of one size, whatever the batch: what a captured graph reads."""

from __future__ import annotations

import collections.abc

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from paged_attention.errors import AttentionArgumentError
from paged_attention.tiles import Sequence, Tiles, blocks_of

Ints = npt.NDArray[np.int32]


class FixedTiles:
    """Of at most ``num_tokens`` sequences with one new token each, to be filled before each step.

    Token ``i`` is sequence ``i``'s. Tokens beyond the last sequence are stored nowhere, and attention makes zeros of
    them.

    :param numbers: ``[size(num_tokens)]`` int32 on the device. :param tables: int32 there, room for all block tables.
    :ivar tiles: for :func:`~paged_attention.attention.write` and :func:`~paged_attention.attention.paged_attention`;
        they never move.
    """

    @staticmethod
    def size(num_tokens: int) -> int:
        return 5 * num_tokens

    @staticmethod
    def tables_size(num_tokens: int, *, max_length: int, block_size: int) -> int:
        """Room for sequences of at most ``max_length`` positions."""
        return num_tokens * -(-max_length // block_size)

    def __init__(self, num_tokens: int, numbers: Tensor, tables: Tensor, *, block_size: int, num_blocks: int) -> None:
        if num_tokens < 1:
            raise AttentionArgumentError("num_tokens", f"{num_tokens} has to be at least 1")
        if numbers.shape != (self.size(num_tokens),):
            message = f"shape {tuple(numbers.shape)}, expected {(self.size(num_tokens),)}"
            raise AttentionArgumentError("numbers", message)
        for name, tensor in (("numbers", numbers), ("tables", tables)):
            if tensor.dtype is not torch.int32 or tensor.ndim != 1:
                raise AttentionArgumentError(name, f"{tensor.dtype}, {tensor.ndim} dimensions; expected int32, 1")
        self._num_tokens, self._room = num_tokens, len(tables)
        self._block_size, self._num_blocks = block_size, num_blocks
        decode, places = numbers.split_with_sizes([4 * num_tokens, num_tokens])
        self.tiles = Tiles(decode.view(-1, 4), decode[:0].view(-1, 4), tables, places)

    def fill(self, sequences: collections.abc.Sequence[Sequence], host: Ints, host_tables: Ints) -> int:
        """Lay out one step, to be copied to ``numbers`` and ``tables`` afterwards.

        :param sequences: one new token each.
        :param host: as ``numbers``. :param host_tables: as ``tables``.
        :returns: how much of ``tables`` is used.
        :raises AttentionArgumentError: the step does not fit; what stands in ``host`` is then of no use.
        """
        if len(sequences) > self._num_tokens:
            raise AttentionArgumentError("sequences", f"{len(sequences)}, there is room for {self._num_tokens}")
        for name, part, expected in (
            ("host", host, self.size(self._num_tokens)),
            ("host_tables", host_tables, self._room),
        ):
            if len(part) != expected:
                raise AttentionArgumentError(name, f"{len(part)} numbers, expected {expected}")
        tiles, places = host[: 4 * self._num_tokens].reshape(-1, 4), host[4 * self._num_tokens :]
        tiles[:] = 0
        tiles[:, 0] = np.arange(self._num_tokens)
        places[:] = -1
        used, size = 0, self._block_size
        for index, sequence in enumerate(sequences):
            if sequence.count != 1:
                message = f"sequence {index}: {sequence.count} new tokens; fixed tiles are for one each"
                raise AttentionArgumentError("sequences", message)
            own = blocks_of(sequence, index, size, self._num_blocks)
            if used + len(own) > self._room:
                message = f"sequence {index}: {used + len(own)} blocks with it, there is room for {self._room}"
                raise AttentionArgumentError("sequences", message)
            tiles[index, 1:] = 1, sequence.start, used
            places[index] = own[sequence.start // size] * size + sequence.start % size
            host_tables[used : used + len(own)] = own
            used += len(own)
        return used
