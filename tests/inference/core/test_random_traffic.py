"""Everything at once, at random, with a runner that knows what every block should hold.

Outputs and scores are those of each request alone; nobody reads what another namespace wrote; an idle core holds
nothing.
"""

from __future__ import annotations

import contextlib
import random
from dataclasses import dataclass
from typing import Any

import pytest

from inference.core.shares import ShareRules
from inference.errors import AdapterInvalid, AdapterNotFound, InferenceError, InvalidRequest, Overloaded
from inference.protocol import Constraint
from tests.inference.core.engine import Engine
from tests.inference.core.fake_runner import FakeRunner

ADAPTERS = "xyzw"


@dataclass
class Asked:
    prompt: list[int]
    adapter: str | None
    max_tokens: int
    scored: bool
    stops: tuple[int, ...]


class Traffic:
    """One seed's engine and whatever is thrown at it."""

    def __init__(self, seed: int, *, guesses: int | None = None, ahead: bool = False) -> None:
        self.rng = rng = random.Random(seed)
        self.runner = FakeRunner(
            num_blocks=rng.choice([16, 24, 64]),
            num_slots=rng.choice([1, 2, 4]),
            memory=rng.choice([None, 1, 2]),
            ahead=ahead,
        )
        self.ahead = 0
        # The longest request needs 15 blocks: 29 + 8 prompt tokens and 23 generated ones, less the last.
        rules = ShareRules(
            rng.choice([0, self.runner.num_blocks - 15]), rng.choice([None, 6]), idle_seconds=rng.choice([1.0, 600.0])
        )
        self.engine = Engine(
            self.runner,
            broken=frozenset({"bad"}),
            token_budget=rng.choice([8, 12, 40]),
            max_waiting=rng.choice([15, 40]),
            max_waiting_per_tenant=rng.choice([12, 40]),
            speculate_tokens=rng.choice([0, 1, 4]) if guesses is None else guesses,
            shares=rules,
        )
        self.prefixes = [[rng.randrange(1, 50) for _ in range(rng.randrange(1, 30))] for _ in range(4)]
        self.asked: dict[str, Asked] = {}
        self.aborted: set[str] = set()
        self.declared: list[str] = []

    def add(self, number: int) -> None:
        rng = self.rng
        prompt = rng.choice(self.prefixes)[: rng.randrange(1, 30)] + [
            rng.randrange(50) for _ in range(rng.randrange(9))
        ]
        one = Asked(
            prompt,
            rng.choice([None, None, *ADAPTERS, "bad"]),
            rng.randrange(1, 24),
            rng.random() < 0.15,
            tuple(rng.sample(range(50), rng.choice([0, 0, 3]))),
        )
        params: dict[str, Any] = {"stop_token_ids": one.stops, "logprobs": rng.choice([None, 0])}
        if rng.random() < 0.02:
            params["presence_penalty"] = 1.0
        if one.scored:
            params["prompt_logprobs"] = 0
        tenant = rng.choice("abc")
        name = f"{number}-{rng.random()}"
        self.engine.add(
            name,
            prompt,
            one.max_tokens,
            params=params,
            adapter=one.adapter,
            tenant=tenant,
            priority=rng.randrange(-1, 2),
            weight="abc".index(tenant) + 1,
        )
        self.asked[name] = one

    def step(self, number: int) -> None:
        rng, engine = self.rng, self.engine
        with contextlib.suppress(Overloaded):
            while rng.random() < 0.4:
                self.add(number)
        if rng.random() < 0.1 and self.asked:
            name = rng.choice(list(self.asked)[-40:])
            if engine.scheduler.abort(name) is not None:
                self.aborted.add(name)
        if rng.random() < 0.02:
            with contextlib.suppress(AdapterNotFound):
                engine.residency.unload(rng.choice(ADAPTERS))
        if rng.random() < 0.01:
            self.declared.append(f"prefix{number}")
            engine.declare(self.declared[-1], rng.choice([None, *ADAPTERS]), rng.choice(self.prefixes))
        if rng.random() < 0.01 and self.declared:
            with contextlib.suppress(InvalidRequest):
                engine.scheduler.cache.public.withdraw(rng.choice(self.declared))
        if engine.executor.jobs and rng.random() < 0.3:
            engine.executor.finish(rng.randrange(len(engine.executor.jobs)))
        engine.step()
        self.ahead += bool(engine.flight)
        if number % 50 == 0:
            engine.scheduler.cache.check()

    def expected(self, one: Asked) -> list[int]:
        tokens: list[int] = []
        for token in self.engine.expected(one.prompt, one.adapter, one.max_tokens):
            tokens.append(token)
            if token in one.stops:
                break
        return tokens

    def error_of(self, name: str) -> InferenceError | None:
        return self.engine.done[name].error

    def check(self) -> None:
        engine = self.engine
        for name, one in self.asked.items():
            if name in self.aborted:
                assert name not in engine.done
            elif isinstance(self.error_of(name), Overloaded):
                assert name not in engine.outputs, "a request that had begun lost its place in the queue"
            elif one.adapter == "bad":
                assert isinstance(self.error_of(name), AdapterInvalid)
            else:
                assert engine.outputs[name] == self.expected(one)
                expected = engine.expected_scores(one.prompt, one.adapter) if one.scored else None
                assert engine.scores.get(name) == expected


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("seed", range(16))
def test_random_traffic_is_exact_and_leaks_nothing(seed: int, ahead: bool) -> None:
    traffic = Traffic(seed, ahead=ahead)
    for number in range(2_500):
        traffic.step(number)
    traffic.engine.drain()
    assert len(traffic.asked) > 500
    traffic.check()
    scheduler = traffic.engine.scheduler
    if not scheduler.limits.speculate_tokens:
        assert bool(traffic.ahead) == ahead
    assert scheduler.cache.hits > 0
    if traffic.runner.num_blocks == 16:
        assert scheduler.preemptions > 0
    if scheduler.limits.speculate_tokens and traffic.runner.memory is not None:
        assert scheduler.portions.right > 0


def test_guesses_change_nothing_but_the_number_of_steps() -> None:
    def run(guesses: int) -> tuple[dict[str, list[int]], int]:
        engine = Engine(FakeRunner(memory=1, eos=3, num_blocks=24), speculate_tokens=guesses, max_waiting=500)
        for number in range(120):
            params = {"stop_token_ids": (number % 50,), "ignore_eos": number % 3 == 0, "logprobs": 0}
            prompt = [number % 7, number % 5, *range(number % 11)]
            engine.add(str(number), prompt, 1 + number % 30, params=params, tenant="ab"[number % 2])
        engine.drain()
        return engine.outputs, engine.runner.steps

    (plain, steps), (guessed, fewer) = run(0), run(4)
    assert plain == guessed
    assert fewer < 0.8 * steps


def test_what_is_constrained_is_not_guessed() -> None:
    engine = Engine(FakeRunner(memory=1, eos=None), speculate_tokens=4)
    constrained = engine.add("constrained", [1], 30, params={"constraint": Constraint("regex", "a*")})
    free = engine.add("free", [1], 30)
    assert constrained.lookup is None
    assert free.lookup is not None


def test_the_kv_of_wrong_guesses_is_never_reused() -> None:
    """The prompt repeats itself and the text does not go on as it did: every guess is wrong."""
    engine = Engine(FakeRunner(eos=None), speculate_tokens=4)
    prompt = [1, 2, 3, 4, 5, 6, 1, 2]
    engine.add("wrong", prompt, 20)
    engine.drain()
    assert engine.scheduler.portions.right < engine.scheduler.portions.guessed
    text = [*prompt, *engine.outputs["wrong"]]
    for length in range(9, len(text)):  # the runner compares what it reads with what should be there
        engine.add(f"again{length}", [*text[:length], 49], 2)
        engine.drain()
    assert engine.scheduler.cache.hits > 0


@pytest.mark.parametrize("guesses", [0, 3])
def test_a_scored_prompt_is_computed_though_it_is_cached(guesses: int) -> None:
    engine = Engine(token_budget=8, speculate_tokens=guesses)
    prompt = list(range(1, 30))
    engine.add("warm", prompt, 2)
    engine.drain()
    scored = engine.add("scored", prompt, 2, params={"prompt_logprobs": 0})
    engine.drain()
    assert scored.cached_tokens == 0
    assert engine.scores["scored"] == engine.expected_scores(prompt, None)
    engine.add("short", [5], 2, params={"prompt_logprobs": 0})
    engine.drain()
    assert engine.scores["short"] == []


def test_scores_survive_a_preemption() -> None:
    engine = Engine(FakeRunner(eos=None, num_blocks=16), token_budget=6)
    prompt = list(range(1, 30))
    scored = engine.add("scored", prompt, 4, params={"prompt_logprobs": 0}, priority=1)
    for _ in range(3):
        engine.step()
    known = len(scored.scores)
    assert 0 < known < len(prompt) - 1
    engine.add("urgent", [7] * 36, 4)
    engine.drain()
    assert scored.preempted == 1
    assert engine.scores["scored"] == engine.expected_scores(prompt, None)
    assert engine.outputs["scored"] == engine.expected(prompt, None, 4)
