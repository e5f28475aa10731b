"""Decode steps as graphs: captured once, replayed for every batch of their size, whatever its adapters are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum

import torch
from torch import Tensor

from inference.attention.triton_backend import TritonAttention
from inference.core.step import BASE_SLOT, Row
from inference.models.decoder import Decoder
from paged_attention import FixedTiles
from paged_attention import Sequence as Attended
from sgmv import FixedPlan, Plan, StepNumbers

Capture = Callable[[Callable[[], None]], Callable[[], None]]
"""Takes work on places that never move, returns what does it again."""


class Kind(Enum):
    """What is launched for adapters: nothing; LoRA's kernels; those and DoRA's."""

    BASE = "base"
    ADAPTED = "adapted"
    GAINED = "gained"


def sizes(most: int) -> list[int]:
    """Batch sizes that there are graphs of: a batch is computed in the next larger one, at most ``most``."""
    steps = [1, 2, 4, *range(8, 65, 8), *range(80, 257, 16), *range(320, most + 64, 64)]
    return [*(size for size in steps if size < most), most]


def cuda_capture() -> Capture:
    """Captures CUDA graphs that share one pool of memory: they are never replayed side by side.

    And one stream, their own, for warming up and capturing: cuBLAS keeps a workspace for each stream that it was used
    on (32 MB on Hopper), whose address is part of the graph. torch's stream for captures is everybody's: any graph that
    was captured on it and goes takes that workspace along.
    """
    pool = torch.cuda.graph_pool_handle()
    beside = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def capture(work: Callable[[], None]) -> Callable[[], None]:
        beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside):  # compiles kernels and makes room for libraries, which a capture cannot
            work()
        torch.cuda.current_stream().wait_stream(beside)
        graph = torch.cuda.CUDAGraph()
        # The adapters' readers allocate pinned memory in their threads: that does not concern this capture.
        with torch.cuda.graph(graph, pool=pool, stream=beside, capture_error_mode="thread_local"):
            work()
        return graph.replay

    return capture


class DecodeGraphs:
    """Steps of rows of one token each.

    :param max_length: positions of the longest sequence.
    :param sampled: ``[most]`` int64, tokens of the step before, which rows may follow; it never moves. So many rows the
        largest step has.
    :param capture: :func:`cuda_capture`; anything else for tests.
    """

    def __init__(
        self,
        decoder: Decoder,
        attention: TritonAttention,
        *,
        max_length: int,
        sampled: Tensor,
        capture: Capture,
    ) -> None:
        most = len(sampled)
        # Largest first: the others find its memory in the pool.
        self._steps = [
            _Step(size, decoder, attention, max_length=max_length, sampled=sampled, capture=capture)
            for size in sorted(sizes(most), reverse=True)
        ]
        self._most, self._sites = most, decoder.sites

    def fits(self, rows: Sequence[Row]) -> bool:
        return len(rows) <= self._most and all(len(row.tokens) == 1 for row in rows)

    def compute(self, rows: Sequence[Row], follows: Sequence[int | None]) -> Tensor:
        """See :meth:`inference.models.decoder.Decoder.forward`. ``[len(rows), hidden]``, until the next call.

        :param rows: that :meth:`fits`. :param follows: of each row the place in ``sampled`` of its token.
        """
        step = next(step for step in reversed(self._steps) if step.size >= len(rows))
        step.fill(rows, follows)
        if not step.plan.active:
            kind = Kind.BASE
        else:
            kind = Kind.GAINED if self._sites.gained(step.plan) else Kind.ADAPTED
        step.replay[kind]()
        return step.hidden[: len(rows)]


class _Step:
    """Places of one size, and the work on them.

    :ivar plan: of the batch filled in last. :ivar hidden: ``[size, hidden]``, what the work leaves behind.
    """

    def __init__(
        self,
        size: int,
        decoder: Decoder,
        attention: TritonAttention,
        *,
        max_length: int,
        sampled: Tensor,
        capture: Capture,
    ) -> None:
        self.size = size
        room = FixedTiles.tables_size(size, max_length=max_length, block_size=attention.block_size)
        parts = [3 * size, FixedPlan.size(size), FixedTiles.size(size), room]
        self._numbers = StepNumbers(parts, sampled.device)
        own, plan, tiles, tables = self._numbers.parts
        self._tokens, self._positions, self._follows = own.view(3, size)
        self.plan = FixedPlan(size, plan)
        self._tiles = FixedTiles(size, tiles, tables, block_size=attention.block_size, num_blocks=attention.num_blocks)
        self._decoder, self._attention, self._sampled = decoder, attention, sampled
        self.fill([], [])
        self.hidden = torch.empty(0, device=sampled.device)
        self.hidden = torch.empty_like(self._forward(Kind.BASE))
        self.replay = {kind: capture(lambda kind=kind: self._work(kind)) for kind in Kind}  # type: ignore[misc]
        # Of no row. A graph that does not work is found out now, and has taken by now what it takes of the device.
        for replay in self.replay.values():
            replay()

    def fill(self, rows: Sequence[Row], follows: Sequence[int | None]) -> None:
        """Lay out a batch; rows beyond it are computed from nothing, and store nothing."""
        own, plan, tiles, tables = self._numbers.begin()
        own[:] = 0
        own[2 * self.size :] = -1
        for index, (row, followed) in enumerate(zip(rows, follows, strict=True)):
            own[self.size + index] = row.start
            if followed is None:
                own[index] = row.tokens[0]
            else:
                own[2 * self.size + index] = followed
        self.plan.fill([row.slot for row in rows], plan)
        used = self._tiles.fill([Attended(row.start, 1, row.block_table) for row in rows], tiles, tables)
        self._numbers.copy(used)

    def _work(self, kind: Kind) -> None:
        self.hidden.copy_(self._forward(kind))

    def _forward(self, kind: Kind) -> Tensor:
        before = self._sampled.index_select(0, self._follows.clamp(min=0))
        tokens = torch.where(self._follows < 0, self._tokens, before)
        # A plan that is not fixed launches nothing for rows without adapters.
        plan = Plan([BASE_SLOT] * self.size) if kind is Kind.BASE else self.plan
        gains = kind is Kind.GAINED
        return self._decoder.forward(tokens, self._positions, plan, self._attention, self._tiles.tiles, gains=gains)
