"""How much of a prompt joins a step beside others' decodes, by what steps took."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from inference.core.pace import Pace
from inference.core.portions import LEAST_PROMPT, STRETCH
from tests.inference.core.fake_runner import FakeRunner
from tests.inference.core.simulation import STEP_SECONDS, TOKEN_SECONDS, Clocked, TimedRunner

Cost = Callable[[int, int], float]

DECODING = 32
PROMPT = 500


def graphs(tokens: int, rows: int) -> float:
    """A GPU's: decodes are replayed, anything else is launched operation by operation."""
    return 0.005 if tokens == rows else 0.010 + 0.00001 * tokens


def linear(tokens: int, rows: int) -> float:
    """A CPU's."""
    return STEP_SECONDS + TOKEN_SECONDS * tokens


class Device(TimedRunner):
    """:ivar took: tokens of each step so far.

    :param cost: seconds of a step, by its tokens and rows.
    """

    def __init__(self, cost: Cost) -> None:
        super().__init__(num_blocks=2000, block_size=16, max_model_len=4096, eos=None)
        self._cost = cost
        self.took: list[int] = []

    def run(self, rows: Sequence[Any]) -> list[Any]:
        self.took.append(sum(len(row.tokens) for row in rows))
        self.busy += self._cost(self.took[-1], len(rows))
        return FakeRunner.run(self, rows)


class House:
    """Many decodes of one tenant, beside which its prompts come; another used less and leads."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.engine = Clocked(device, max_running=64, token_budget=512)
        self._count = 0
        self.engine.add("light", [9] * 8, 1, tenant="light")
        for number in range(DECODING):
            self.engine.add(f"decoding {number}", [number + 1] * 20, 3000, tenant="heavy")
        while len(self.engine.scheduler.waiting) or any(len(row) > 1 for row in self._lengths()):
            self.engine.step()
        self.rest(5)

    def _lengths(self) -> list[Sequence[int]]:
        return [sequence.tokens[sequence.computed :] for sequence in self.engine.scheduler.running]

    def rest(self, steps: int) -> None:
        for _ in range(steps):
            self.engine.step()

    def prompt(self, length: int) -> list[int]:
        """Tokens of each step until its first token."""
        self._count += 1
        name, before = f"prompt {self._count}", len(self.device.took)
        self.engine.add(name, [self._count % 50, *[3] * (length - 1)], 1, tenant="heavy")
        while name not in self.engine.done:
            self.engine.step()
        return self.device.took[before:]


def test_a_jump_does_not_cut_prompts_small() -> None:
    """The token budget leaves 480 beside the decodes: two steps are the least."""
    house = House(Device(graphs))
    steps = []
    for _ in range(8):
        steps.append(len(house.prompt(PROMPT)))
        house.rest(10)
    assert max(steps) <= 3
    assert steps[1:] == [2] * 7


def test_where_tokens_cost_prompts_stretch_steps_by_half() -> None:
    """Beside the decodes alone, which is the same there as with hardly a prompt token."""
    house, rng, steps = House(Device(linear)), random.Random(1), []
    for _ in range(8):
        steps += house.prompt(rng.randrange(70, 150))
        house.rest(5)
    lasted = [linear(tokens, DECODING) / linear(DECODING, DECODING) for tokens in steps]
    assert max(lasted) <= 1.5
    assert sorted(lasted)[len(lasted) // 2] > 1.45, "they come on more slowly than they may"


def steps_of(pace: Pace, prompt: int, cost: Cost, noise: Callable[[], float]) -> int:
    """As :class:`~inference.core.portions.Portions` has it, without sequences."""
    steps = 0
    while prompt:
        limit = pace.beside(DECODING, STRETCH)
        joins = min(prompt, 512 - DECODING, 512 if limit is None else max(limit, LEAST_PROMPT))
        pace.learn(DECODING + joins, cost(DECODING + joins, DECODING) * noise())
        prompt, steps = prompt - joins, steps + 1
    return steps


@pytest.mark.parametrize("noise", [0.05, 0.2])
@pytest.mark.parametrize("lengths", [[PROMPT], range(20, PROMPT)], ids=["one length", "many"])
def test_noise_does_not_cut_them_small_either(noise: float, lengths: Sequence[int]) -> None:
    for seed in range(20):
        pace, rng = Pace(), random.Random(seed)
        steps = [steps_of(pace, rng.choice(lengths), graphs, lambda: rng.gauss(1.0, noise)) for _ in range(200)]  # noqa: B023
        assert sum(steps) / len(steps) < 2.5
        assert sorted(steps)[190] <= 4


def test_the_pace_is_learnt_from_steps() -> None:
    pace = Pace()
    assert pace.beside(16, 1.5) is None
    for tokens in [16, 86, 16, 40, 16, 300] * 5:
        pace.learn(tokens, 0.030 + 0.003 * tokens)
    assert pace.beside(16, 1.5) == pytest.approx(0.5 * 0.078 / 0.003, abs=1)


def test_steps_of_one_size_are_taken_to_cost_by_the_token() -> None:
    pace = Pace()
    for _ in range(10):
        pace.learn(16, 0.078)
    assert pace.beside(16, 1.5) == 8


@pytest.mark.parametrize("slope", [0.0, -0.00001])
def test_tokens_that_cost_nothing_are_not_limited(slope: float) -> None:
    pace = Pace()
    for tokens in [48, 100, 512] * 5:
        pace.learn(tokens, 0.010 + slope * tokens)
    assert pace.beside(32, 1.5) is None


def test_a_cost_that_does_not_stand_out_of_the_noise_limits_little() -> None:
    """Where only sizes that are nearly the same were seen, a line through them says anything."""
    tight = 0
    for seed in range(200):
        pace, rng = Pace(), random.Random(seed)
        for _ in range(100):
            tokens = rng.randrange(40, 48)
            pace.learn(tokens, graphs(tokens, DECODING) * rng.gauss(1.0, 0.1))
        limit = pace.beside(DECODING, STRETCH)
        tight += limit is not None and limit < 100
    assert tight < 20


def test_noise_does_not_hide_a_cost_that_is_there() -> None:
    for seed in range(20):
        pace, rng = Pace(), random.Random(seed)
        limits = []
        for _ in range(200):
            steps_of(pace, rng.randrange(20, 200), linear, lambda: rng.gauss(1.0, 0.2))  # noqa: B023
            limits.append(pace.beside(DECODING, STRETCH) or 512)
        assert 14 <= sorted(limits[10:])[95] <= 35, "21 are half as much again"
