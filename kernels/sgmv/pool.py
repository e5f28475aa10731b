"""The operands of one site's adapters, each held once, the active ones side by side at the front."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sgmv.weights import SlotWeights


class Pool:
    """Adapters of one rank class at one site.

    ``a`` is ``[capacity, slices·rank, in]``, ``b`` per slice ``[capacity, rank, out]``, scaled. The ranks that an
    adapter, or a slice of it, falls short of ``rank`` are zeros of its own block: they meet only its own rows, and add
    exactly nothing.

    Positions ``0 … len(pool)`` are occupied without gaps. :meth:`front` swaps the slots of a batch to the first
    positions, so that one batched product reads them where they lie: a slot that joins or leaves the batch costs one
    swap, not a new packing of all.
    """

    def __init__(self, rank: int, in_features: int, slices: Sequence[int], dtype: torch.dtype) -> None:
        self.rank = rank
        self._slices = tuple(slices)
        self._a = torch.empty(0, len(slices) * rank, in_features, dtype=dtype)
        self._b = [torch.empty(0, rank, width, dtype=dtype) for width in slices]
        self._order: list[int] = []
        self._where: dict[int, int] = {}
        self._present: dict[int, tuple[bool, ...]] = {}
        self._asked: tuple[int, ...] | None = None
        self._front: tuple[int, ...] = ()
        self.a = self._a
        self.b: list[Tensor | None] = []

    def __len__(self) -> int:
        return len(self._order)

    def __contains__(self, slot: int) -> bool:
        return slot in self._where

    @property
    def order(self) -> tuple[int, ...]:
        """Slots in the order in which their operands lie."""
        return tuple(self._order)

    @property
    def num_bytes(self) -> int:
        return sum(tensor.numel() * tensor.element_size() for tensor in (self._a, *self._b))

    def add(self, slot: int, weights: SlotWeights) -> None:
        """:param weights: checked; of ranks up to the pool's. The slot has to be absent."""
        position = len(self._order)
        if position == len(self._a):
            self._resize(max(1, 2 * position))
        self._a[position].zero_()
        for index, (a, b, scaling) in enumerate(zip(weights.a, weights.b, weights.scaling, strict=True)):
            expand = self._b[index][position].zero_()
            if a is not None and b is not None:
                first, own = index * self.rank, a.shape[0]
                self._a[position, first : first + own] = a
                expand[:own] = (b.to(expand.dtype) * scaling).t()
        self._order.append(slot)
        self._where[slot] = position
        self._present[slot] = tuple(a is not None for a in weights.a)
        self._forget()

    def remove(self, slot: int) -> None:
        """The last one moves into the gap."""
        gap, last = self._where.pop(slot), self._order.pop()
        del self._present[slot]
        if last != slot:
            for tensor in (self._a, *self._b):
                tensor[gap].copy_(tensor[len(self._order)])
            self._order[gap], self._where[last] = last, gap
        if 4 * len(self._order) <= len(self._a):
            self._resize(2 * len(self._order))
        self._forget()

    def front(self, slots: tuple[int, ...]) -> tuple[int, ...]:
        """Bring those of ``slots`` that are here to the front; returns them in the order of their positions.

        ``self.a`` ``[groups, slices·rank, in]`` and ``self.b``, per slice ``[groups, rank, out]`` or ``None`` where
        none of them has the slice, are views of their operands until the next change.
        """
        if slots != self._asked:
            wanted = {slot for slot in slots if slot in self._where}
            count = len(wanted)
            gaps = [position for position in range(count) if self._order[position] not in wanted]
            for gap, late in zip(gaps, [slot for slot in self._order[count:] if slot in wanted], strict=True):
                self._swap(gap, self._where[late])
            self._asked, self._front = slots, tuple(self._order[:count])
            self.a = self._a[:count]
            held = [any(self._present[slot][index] for slot in self._front) for index in range(len(self._slices))]
            self.b = [b[:count] if own else None for b, own in zip(self._b, held, strict=True)]
        return self._front

    def single(self, slot: int) -> tuple[Tensor, list[Tensor | None]]:
        """``[slices·rank, in]`` and per slice ``[rank, out]``, ``None`` where the adapter leaves the slice alone."""
        position, present = self._where[slot], self._present[slot]
        return self._a[position], [b[position] if own else None for b, own in zip(self._b, present, strict=True)]

    def _swap(self, one: int, other: int) -> None:
        for tensor in (self._a, *self._b):
            kept = tensor[one].clone()
            tensor[one].copy_(tensor[other])
            tensor[other].copy_(kept)
        order = self._order
        order[one], order[other] = order[other], order[one]
        self._where[order[one]], self._where[order[other]] = one, other

    def _resize(self, capacity: int) -> None:
        def moved(old: Tensor) -> Tensor:
            new = old.new_empty(capacity, *old.shape[1:])
            new[: len(self._order)] = old[: len(self._order)]
            return new

        self._a, self._b = moved(self._a), [moved(b) for b in self._b]

    def _forget(self) -> None:
        """What :meth:`front` last answered, and the views of it: they may show what has moved or is gone."""
        self._asked, self._front = None, ()
        self.a, self.b = self._a[:0], []
