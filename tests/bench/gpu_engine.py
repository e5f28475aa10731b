"""The engine's runner on random weights: tokens to check, and seconds of its decode and prefill steps."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from random_model import RandomModel

from inference.core.step import BASE_SLOT, UNKNOWN, Row
from inference.protocol import SamplingParams
from inference.runner import TorchRunner

BLOCK = 16
GREEDY = SamplingParams(max_tokens=1 << 20, temperature=0.0, ignore_eos=True)
CHOICES = {
    "sampled": replace(GREEDY, temperature=0.8),
    "nucleus": replace(GREEDY, temperature=0.8, top_p=0.9),
}
"""Other ways of choosing than the most likely token, each a figure."""


@dataclass(frozen=True, slots=True)
class Load:
    """What is measured.

    :param sequences: that decode at once. :param context: tokens that each has before the first measured step.
    :param adapters: how many distinct ones, each a figure. :param prefill: tokens of a step, in prompts of one length,
        each with another of ``prefill_adapters``. :param steps: of one repeat.
    :param checked: tokens that each sequence generates for the check. :param most_tokens: of a step.
    """

    sequences: int
    context: int
    adapters: tuple[int, ...]
    prefill: int
    prefill_adapters: int
    steps: int
    repeats: int
    checked: int = 8
    most_tokens: int = 4096

    @property
    def slots(self) -> int:
        return max(*self.adapters, self.prefill_adapters)

    @property
    def positions(self) -> int:
        """Of one sequence, at most."""
        measured = 3 + self.steps * self.repeats
        return max(self.context + max(self.checked, measured), self.prefill // self.prefill_adapters)


@dataclass(frozen=True, slots=True)
class Answer:
    """What one row of the check generated. :param adapter: its number; ``None``: the base model."""

    adapter: int | None
    prompt: list[int]
    tokens: list[int]


class Engine:
    """A loaded runner, its adapters in slots of their own numbers once they are loaded.

    :ivar launching: of :meth:`decode`'s last steps: milliseconds that the host took to lay one out and launch it, the
        median. ``None`` where the host waits for what it launches.
    """

    launching: float | None = None

    def __init__(self, model: RandomModel, load: Load, device: torch.device) -> None:
        self.model, self.load = model, load
        self._blocks = -(-load.positions // BLOCK)
        self._runner = TorchRunner.load(
            model.base,
            num_blocks=max(load.sequences, load.prefill_adapters) * self._blocks,
            block_size=BLOCK,
            num_slots=load.slots,
            most_rows=load.sequences,
            max_model_len=load.positions,
            dtype=str(model.dtype).removeprefix("torch."),
            device=str(device),
        )

    def load_adapters(self) -> None:
        for slot in range(self.load.slots):
            self._runner.load_adapter(slot, self._runner.read_adapter(self.model.adapter(slot)))

    def answers(self) -> list[Answer]:
        """What all sequences generate in one batch, each with an adapter of its own, every fourth with none."""
        load = self.load
        slots = [BASE_SLOT if row % 4 == 3 else row % load.slots for row in range(load.sequences)]
        steps = [self._fill(slots)]
        for number in range(load.checked - 1):
            steps.append(self._step([[token] for token in steps[-1]], load.context + number, slots))
        return [
            Answer(None if slot == BASE_SLOT else slot, self._tokens(load.context, row), list(own))
            for row, (slot, own) in enumerate(zip(slots, zip(*steps, strict=True), strict=True))
        ]

    def decode(self, adapters: int, params: SamplingParams = GREEDY) -> list[float]:
        """Median milliseconds of a step of all sequences, for each repeat. :param adapters: distinct ones; 0: none.

        As the core drives them: each is launched before the one before is read, where the runner goes ahead.

        :param params: how each sequence's tokens are chosen.
        """
        load = self.load
        slots = self._slots(load.sequences, adapters)
        runner = self._runner
        step = runner.launch(self._rows([[token] for token in self._fill(slots)], load.context, slots))
        times, launching = [], []
        for number in range(1, load.repeats * load.steps + 3):
            started = time.perf_counter()
            if runner.ahead:
                following = runner.launch(self._following(load.context + number, slots, params))
                launching.append(1000 * (time.perf_counter() - started))
                step.results()
            else:
                last = [result.tokens for result in step.results() if result is not None]
                following = runner.launch(self._rows(last, load.context + number, slots, params=params))
            step = following
            times.append(1000 * (time.perf_counter() - started))
        step.results()
        self.launching = statistics.median(launching) if launching else None
        return [
            statistics.median(times[2 + repeat * load.steps : 2 + (repeat + 1) * load.steps])
            for repeat in range(load.repeats)
        ]

    def prefill(self, adapters: int) -> list[float]:
        """Milliseconds of one step of ``load.prefill`` tokens. :param adapters: over so many; 0: none."""
        rows = self.load.prefill_adapters
        prompts = [self._tokens(self.load.prefill // rows, row) for row in range(rows)]
        slots, times = self._slots(rows, adapters), []
        for _ in range(self.load.repeats + 1):
            started = time.perf_counter()
            self._step(prompts, 0, slots)
            times.append(1000 * (time.perf_counter() - started))
        return times[1:]

    def _slots(self, rows: int, adapters: int) -> list[int]:
        return [row % adapters if adapters else BASE_SLOT for row in range(rows)]

    def _fill(self, slots: Sequence[int]) -> list[int]:
        """Every sequence's context, some sequences a step. The tokens that follow."""
        load = self.load
        prompts = [self._tokens(load.context, row) for row in range(load.sequences)]
        at_once = max(1, load.most_tokens // load.context)
        last: list[int] = []
        for first in range(0, load.sequences, at_once):
            last += self._step(prompts[first : first + at_once], 0, slots[first : first + at_once], first)
        return last

    def _step(self, fresh: Sequence[list[int]], start: int, slots: Sequence[int], first: int = 0) -> list[int]:
        """The token that each row gains: with it on the host the device has done the step."""
        rows = self._rows(fresh, start, slots, first)
        return [result.tokens[0] for result in self._runner.run(rows) if result is not None]

    def _rows(
        self,
        fresh: Sequence[list[int]],
        start: int,
        slots: Sequence[int],
        first: int = 0,
        params: SamplingParams = GREEDY,
    ) -> list[Row]:
        return [
            Row(tokens, start, self._table(row), slot, params, prompt=tokens, seed=0)
            for row, (tokens, slot) in enumerate(zip(fresh, slots, strict=True), first)
        ]

    def _following(self, start: int, slots: Sequence[int], params: SamplingParams) -> list[Row]:
        """The step after one whose tokens are not known yet."""
        return [
            Row([UNKNOWN], start, self._table(row), slot, params, [UNKNOWN], [0], follows=row)
            for row, slot in enumerate(slots)
        ]

    def _table(self, row: int) -> range:
        return range(row * self._blocks, (row + 1) * self._blocks)

    def _tokens(self, count: int, seed: int) -> list[int]:
        """Random ones, another prompt for each seed; never a special one."""
        generator = torch.Generator().manual_seed(seed)
        return [int(t) for t in torch.randint(3, self.model.config.vocab_size, (count,), generator=generator)]
