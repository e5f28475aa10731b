"""An adapter's matrices laid out in host memory as slots hold them, so that a load only copies them to the device.

Transposing, dividing and laying end to end take tens of milliseconds for an 8B model. They belong to the threads that
read: whatever a load takes, every running request waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import starmap

import torch

from inference.adapters.host import HostAdapter, HostLayer
from sgmv import LaidOut, SlotWeights, laid_bytes

_ALIGNMENT = 128
"""Bytes at whose multiples each site's begin: a GPU's cache line."""
_PIECE = 4 << 20
"""Bytes of pinned memory that are asked for at a time.

torch rounds them up to a power of two, and what is given back serves requests of the same size alone, for good: of one
piece as large as the adapter, half might be nobody's, and adapters of other ranks could not have it when it goes.
"""


def laid_out(adapter: HostAdapter, held: torch.dtype, *, pinned: bool) -> HostAdapter:
    """A copy of all sites' matrices in a few pieces of memory; gains and embedding as they were.

    :param adapter: cut already, where ranks share it. :param held: the type that sites hold matrices in.
    :param pinned: the device's copies need not be waited for.
    """
    sites = _sites(adapter)
    sizes = [laid_bytes(weights, held) for weights in sites]
    places, used = _packed(sizes)
    memory = tuple(
        torch.empty(1 << (size - 1).bit_length(), dtype=torch.uint8, device="cpu", pin_memory=pinned)[:size]
        for size in used
    )
    spans = [memory[piece][start : start + size] for (piece, start), size in zip(places, sizes, strict=True)]
    laid = [LaidOut.of(weights, held, span) for weights, span in zip(sites, spans, strict=True)]
    return _with(adapter, laid, memory)


def moved(adapter: HostAdapter, device: torch.device) -> HostAdapter:
    """What is laid out, on a device, by copies that are not waited for; what is not stays where it is."""
    if adapter.memory is None:
        return adapter
    laid = [weights for weights in _sites(adapter) if isinstance(weights, LaidOut)]
    sizes = [len(weights.memory) for weights in laid]
    places, _ = _packed(sizes)
    memory = tuple(piece.to(device, non_blocking=True) for piece in adapter.memory)
    spans = [memory[piece][start : start + size] for (piece, start), size in zip(places, sizes, strict=True)]
    return _with(adapter, list(starmap(LaidOut.on, zip(laid, spans, strict=True))), memory)


def _packed(sizes: Sequence[int]) -> tuple[list[tuple[int, int]], list[int]]:
    """Of each site its piece and where it begins there, and of each piece how many bytes are used."""
    places: list[tuple[int, int]] = []
    used: list[int] = []
    for size in sizes:
        if not used or used[-1] + size > _PIECE:
            used.append(0)
        places.append((len(used) - 1, used[-1]))
        used[-1] += -(-size // _ALIGNMENT) * _ALIGNMENT
    return places, used


def _sites(adapter: HostAdapter) -> list[SlotWeights]:
    sites = [weights for layer in adapter.layers for weights in layer.sites.values()]
    return sites if adapter.head is None else [*sites, adapter.head]


def _with(adapter: HostAdapter, laid: list[LaidOut], memory: tuple[torch.Tensor, ...]) -> HostAdapter:
    """:param laid: in the order of :func:`_sites`."""
    rest = iter(laid)
    layers = tuple(HostLayer({name: next(rest) for name in layer.sites}, layer.gains) for layer in adapter.layers)
    return replace(adapter, layers=layers, head=None if adapter.head is None else next(rest), memory=memory)
