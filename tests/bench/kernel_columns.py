"""The ways of adding adapters' deltas that are compared. Each holds one batch's adapters; ``FOREIGN`` stand beside."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from itertools import accumulate, groupby
from typing import ClassVar

import torch
from kernel_adapters import SCALING, Adapters
from kernel_shapes import PREFILL, Case
from torch import Tensor

from inference.adapter_tensors import MAX_RANK
from sgmv import FP8, FixedPlan, Plan, StepNumbers, Storage


class Absent(Exception):
    """This machine has not got what a column runs."""


class Column(ABC):
    """:meth:`begin` once a step, then :meth:`apply` at every site of every layer.

    :raises Absent: made on a machine without its kernels.
    """

    name: ClassVar[str]
    tolerance: ClassVar[float | None] = None
    """Of the delta's largest number; ``None``: what the type's rounding costs."""
    held_bytes: ClassVar[int | None] = None
    """Of each number of the adapters; ``None``: those of the type of x and y."""

    def __init__(self, adapters: Adapters) -> None:
        self.adapters = adapters
        self.device, self.dtype = adapters.a.device, adapters.a.dtype

    @staticmethod
    def scratch_bytes(case: Case, itemsize: int) -> int:
        """Memory that a call takes beside its operands, where that is much."""
        return 0

    @abstractmethod
    def begin(self, slots: Sequence[int]) -> None:
        """What a step's rows are, made and copied to the device. :param slots: of each row, ascending."""

    @abstractmethod
    def apply(self, y: Tensor, x: Tensor) -> None:
        """``y[t] += scaling · B[s] (A[s] x[t])``, with nothing but work for the device: it is captured in a graph."""

    def end(self) -> None:  # noqa: B027  most keep nothing
        """Have forgotten what the kernels' own package keeps of these adapters."""


class Ours(Column):
    """:class:`sgmv.triton_site.TritonSite`: decoding as the graph of one batch size that serves any mix of adapters."""

    name = "ours"
    storage_dtype: ClassVar[torch.dtype | None] = None

    def __init__(self, adapters: Adapters) -> None:
        from sgmv.triton_site import TritonSite

        super().__init__(adapters)
        site, storage = adapters.site, self._storage(len(adapters))
        self._site = TritonSite(site.inputs, site.slices, self.device, self.dtype, storage)
        for slot in range(len(adapters)):
            self._site.set(slot, adapters.slot_weights(slot))
        self._numbers: StepNumbers | None = None
        self._plan: Plan | None = None

    def _storage(self, slots: int) -> Storage:
        return Storage(slots=slots, max_rank=MAX_RANK, dtype=self.storage_dtype)  # as the engine has it

    def begin(self, slots: Sequence[int]) -> None:
        if len(slots) >= PREFILL:
            self._plan = Plan(slots)
            self._plan.on(self.device)
            return
        if self._numbers is None or not isinstance(self._plan, FixedPlan):
            self._numbers = StepNumbers([FixedPlan.size(len(slots))], self.device)
            self._plan = FixedPlan(len(slots), self._numbers.parts[0])
        (host,) = self._numbers.begin()
        self._plan.fill(slots, host)
        self._numbers.copy()

    def apply(self, y: Tensor, x: Tensor) -> None:
        assert self._plan is not None, "begin() comes first"
        self._site.apply(y, x, self._plan)


class OursFp8(Ours):
    """The same with adapters held as float8_e4m3fn: half the bytes, and rounding that the delta shows."""

    name = "ours_fp8"
    tolerance = 0.1  # 0.037 of its length was measured, tests/kernels/test_fp8.py
    held_bytes = 1
    storage_dtype = FP8


class Loop(Column):
    """Each adapter by itself: its rows through A, then through each slice's B, as PEFT does."""

    name = "loop"

    def begin(self, slots: Sequence[int]) -> None:
        counts = [(slot, len(list(rows))) for slot, rows in groupby(slots)]
        ends = accumulate(count for _, count in counts)
        self._groups = [(slot, slice(end - count, end)) for (slot, count), end in zip(counts, ends, strict=True)]

    def apply(self, y: Tensor, x: Tensor) -> None:
        own = self.adapters
        for slot, rows in self._groups:
            shrunk = torch.mm(x[rows], own.a[slot].t())
            for ranks, columns in zip(own.ranks, own.columns, strict=True):
                y[rows, columns].addmm_(shrunk[:, ranks], own.b[slot, columns].t(), alpha=SCALING)


class Gather(Column):
    """A copy of its adapter's matrices for every row, then one batched product."""

    name = "gather_bmm"

    @staticmethod
    def scratch_bytes(case: Case, itemsize: int) -> int:
        return case.tokens * case.adapter_bytes(itemsize) // case.adapters

    def begin(self, slots: Sequence[int]) -> None:
        self._slots = torch.tensor(slots).to(self.device)

    def apply(self, y: Tensor, x: Tensor) -> None:
        own = self.adapters
        shrunk = torch.bmm(own.a.index_select(0, self._slots), x.unsqueeze(2))
        b = own.b.index_select(0, self._slots)
        for ranks, columns in zip(own.ranks, own.columns, strict=True):
            y[:, columns].add_(torch.bmm(b[:, columns], shrunk[:, ranks]).squeeze(2), alpha=SCALING)


class Grouped(Column):
    """torch's grouped product, one group an adapter, rows in order; what mixtures of experts are computed with."""

    name = "grouped_mm"

    def __init__(self, adapters: Adapters) -> None:
        super().__init__(adapters)
        self._product = grouped_product()

    def begin(self, slots: Sequence[int]) -> None:
        counts = torch.bincount(torch.tensor(slots), minlength=len(self.adapters))
        self._ends = counts.cumsum(0).to(torch.int32).to(self.device)

    def apply(self, y: Tensor, x: Tensor) -> None:
        own = self.adapters
        shrunk = self._product(x, own.a.transpose(1, 2), offs=self._ends)
        for ranks, columns in zip(own.ranks, own.columns, strict=True):
            part = self._product(shrunk[:, ranks], own.b[:, columns].transpose(1, 2), offs=self._ends)
            y[:, columns].add_(part, alpha=SCALING)


def grouped_product() -> Callable[..., Tensor]:
    """torch's, under its public name or the one from before. Raises :class:`Absent`."""
    found = getattr(torch.nn.functional, "grouped_mm", None) or getattr(torch, "_grouped_mm", None)
    if found is None:
        raise Absent(f"torch {torch.__version__} has no grouped_mm")
    return found
