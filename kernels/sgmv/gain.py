"""DoRA at one site: the base model's output is scaled per adapter and output feature.

DoRA replaces ``W`` by ``g ⊙ (W + s·B A)`` with a length ``g`` for each row. With ``B`` scaled by ``g`` beforehand the
second term is plain LoRA; what remains is ``y[t] += (g[slot of t] − 1) ⊙ (y[t] − bias − residual[t])``, which this file
computes, before LoRA's delta is added.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property

import torch
from torch import Tensor

from sgmv.errors import SgmvArgumentError
from sgmv.plan import Plan
from sgmv.storage import Storage, actual


class GainRows:
    """The rows of a batch whose adapter has gains, worked out once a step.

    :param plan: of all rows. :param held: the slots that have gains.
    """

    def __init__(self, plan: Plan, held: Collection[int], device: torch.device) -> None:
        self.plan = plan
        self._held, self._device = held, device

    @classmethod
    def of(cls, plan: Plan, held: Collection[int], device: torch.device) -> GainRows | None:
        """``None`` where no row has gains."""
        return cls(plan, held, device) if any(slot in held for slot in plan.slots) else None

    @cached_property
    def index(self) -> tuple[Tensor, Tensor]:
        """For torch's operations: the rows and the slot of each, ``[n]`` int64."""
        pairs = [(row, slot) for slot in self.plan.slots if slot in self._held for row in self.plan.rows(slot)]
        rows, slots = torch.tensor(pairs, device=self._device).view(-1, 2).t()
        return rows, slots


class Gain:
    """Output gains of one site, by slot, in torch's operations.

    :param width: of the site's output. :param bias: the linear's own, ``[width]``, which DoRA leaves as it is.
    """

    def __init__(
        self,
        width: int,
        bias: Tensor | None,
        *,
        device: torch.device | str,
        dtype: torch.dtype,
        storage: Storage | None = None,
    ) -> None:
        self.width, self.dtype, self.device = width, dtype, actual(device)
        self._bias = bias
        self._storage = storage or Storage()
        self._excess = torch.empty(0, width, device=device, dtype=dtype)
        self._held: set[int] = set()

    @property
    def held(self) -> Collection[int]:
        """The slots that have been :meth:`set`."""
        return self._held

    @property
    def num_bytes(self) -> int:
        return self._excess.numel() * self._excess.element_size()

    def set(self, slot: int, excess: Tensor | None) -> None:
        """:param excess: ``g − 1``, ``[width]``; ``None``: the adapter leaves this site alone.

        :raises SgmvArgumentError: and nothing is changed.
        """
        self._storage.check(slot)
        if excess is not None and excess.shape != (self.width,):
            raise SgmvArgumentError("excess", f"shape {tuple(excess.shape)}, expected {(self.width,)}")
        self._put(slot, excess)
        self._held.add(slot)

    def clear(self, slot: int) -> None:
        self._held.discard(slot)
        if not self._held:
            self._excess = self._excess[:0].clone()

    def apply(self, y: Tensor, chosen: GainRows, residual: Tensor | None = None) -> None:
        """In place, on the chosen rows alone.

        Where the residual was added into ``y``, taking it off again costs no more than the rounding that adding it did.

        :param y: ``[T, width]``, the linear's output, plus ``residual`` where there is one.
        :param chosen: every slot has been :meth:`set`.
        """
        rows, slots = chosen.index
        own = y.index_select(0, rows)
        if residual is not None:
            own -= residual.index_select(0, rows)
        if self._bias is not None:
            own -= self._bias
        y.index_add_(0, rows, own.mul_(self._excess.index_select(0, slots)))

    def _put(self, slot: int, excess: Tensor | None) -> None:
        if slot >= len(self._excess):
            grown = self._excess.new_zeros(max(slot + 1, 2 * len(self._excess)), self.width)
            grown[: len(self._excess)] = self._excess
            self._excess = grown
        if excess is None:
            self._excess[slot].zero_()
        else:
            self._excess[slot].copy_(excess)
