"""How a CUDA device's memory is divided: the KV cache's part, and what adapters may take beside steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from inference.errors import ConfigError, Overloaded

KV_SHARE = 0.6
"""Of what the weights leave: the KV cache's. The rest is for steps, for graphs' places and, most of it, for adapters.

Chosen, not measured: beside an 8B model in 16 bits, 24 GB then hold 34,000 tokens and 140 GB half a million, and about
25 and 500 adapters of rank 16 on all linears.
"""


def blocks_that_fit(device: torch.device, block_bytes: int, least: int) -> int:
    """Blocks of a KV pool on a CUDA device on which the weights lie already.

    :param block_bytes: of a block's keys and values in all layers. :param least: that the longest request needs.
    :raises ConfigError: they do not fit.
    """
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info(device)
    blocks = int(free * KV_SHARE) // block_bytes
    if blocks < least:
        raise ConfigError(
            f"{device} has room for {blocks} KV blocks beside the model ({free / 1e6:.0f} MB are free), and the "
            f"longest request needs {least}; --max-model-len asks for fewer"
        )
    return blocks


class DeviceRoom:
    """Adapters come and go as long as a worker runs, of any tenant and of any rank up to the largest.

    A step that finds no memory is the end of the worker, for everybody; an adapter that finds none is one request's.

    :param most: bytes that tensors may hold between two steps. :param held: bytes that they hold now.
    :param kept: bytes that steps find, whatever is loaded. :param found: bytes that they would find now.
    """

    def __init__(self, most: int, held: Callable[[], int], kept: int, found: Callable[[], int]) -> None:
        self._most, self._held, self._kept, self._found = most, held, kept, found

    @classmethod
    def of(cls, device: torch.device, kept: int) -> DeviceRoom:
        """All of the device's that nobody has, less what steps take.

        :param kept: bytes that the largest steps took. Twice as much is left to them: the allocator's pieces do not
            always fit together.
        """
        kept *= 2
        torch.cuda.empty_cache()
        free, _ = torch.cuda.mem_get_info(device)
        most = torch.cuda.memory_allocated(device) + free - kept
        return cls(most, lambda: torch.cuda.memory_allocated(device), kept, lambda: _found(device, kept))

    @property
    def free(self) -> int:
        """Bytes; below 0 where there are none."""
        return self._most - self._held()

    def check(self, device: torch.device, num_blocks: int) -> None:
        """Raises :class:`ConfigError` where no adapter can be loaded at all. :param num_blocks: of the KV pool."""
        if self.free <= 0:
            raise ConfigError(
                f"{device} has no room for adapters beside the model, {num_blocks} KV blocks and a step; "
                "--kv-blocks asks for fewer, --slots 0 does without adapters"
            )

    @contextmanager
    def taking(self, size: int) -> Iterator[None]:
        """An adapter of ``size`` bytes is loaded. Raises :class:`Overloaded` where it does not fit.

        All of it may have been loaded by then, or a part: its slot is to be cleared.
        """
        message = f"The device has no memory for this adapter of {size / 1e6:.0f} MB beside those in use"
        if size > self.free:
            raise Overloaded(message)
        try:
            yield
        except torch.OutOfMemoryError as error:
            raise Overloaded(message) from error
        # Tensors may leave no piece that is whole: adapters that went leave holes among those that stayed, and matrices
        # are cut from what steps gave back. Looked at afterwards, since nobody knows beforehand how much of an adapter
        # will lie in such holes, where it takes nothing that a step could have had.
        if self._found() < self._kept:
            raise Overloaded(message)


def _found(device: torch.device, enough: int) -> int:
    """Bytes of the device that torch can get; exact where they are less than ``enough``.

    What steps gave back torch keeps, in whole pieces and in such as adapters have a part of. Only the former can be
    given to any step again: emptying the cache shows how much that is. It waits for the device, and the next step asks
    it for memory anew, so it is done where memory is short alone.
    """
    free, _ = torch.cuda.mem_get_info(device)
    if free < enough:
        torch.cuda.empty_cache()
        free, _ = torch.cuda.mem_get_info(device)
    return free
