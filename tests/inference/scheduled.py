"""Requests of every kind through scheduler and runner together, as the core's loop drives them."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from inference.core.flight import Flight
from inference.core.limits import Limits
from inference.core.prefix_cache import PrefixCache
from inference.core.residency import Residency
from inference.core.scheduler import Scheduler
from inference.core.sequence import Sequence
from inference.protocol import FinishReason, SamplingParams
from inference.runner import TorchRunner

KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "sampled": {"temperature": 0.7},
    "nucleus": {"temperature": 1.0, "top_p": 0.8, "top_k": 20},
    "penalties": {"temperature": 0.3, "presence_penalty": 0.7, "frequency_penalty": 0.3, "repetition_penalty": 1.2},
    "minimum": {"temperature": 0.0, "min_tokens": 12, "stop_token_ids": tuple(range(0, 300, 3))},
    "stops": {"temperature": 0.0, "stop_token_ids": tuple(range(0, 300, 17))},
    # A random decoder repeats nothing by itself: these make texts in which guesses are right, or half of them.
    "loop": {"temperature": 0.0, "logit_bias": {5: 50.0}},
    "coin": {"temperature": 1.0, "logit_bias": {5: 50.0, 6: 50.0}, "logprobs": 3},
    "cycle": {"temperature": 0.0, "logit_bias": {5: 60.0, 6: 60.0, 7: 60.0}, "frequency_penalty": 2.0},
    "loop until 6": {
        "temperature": 0.0,
        "logit_bias": {5: 60.0, 6: 57.0},
        "frequency_penalty": 0.2,
        "stop_token_ids": (6,),
    },
}


@dataclass
class Answer:
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish: FinishReason | None = None


@dataclass
class Outcome:
    """:ivar steps: that were computed. :ivar ahead: those launched while the one before was on its way."""

    answers: dict[str, Answer]
    scheduler: Scheduler
    steps: int = 0
    ahead: int = 0

    @property
    def tokens(self) -> dict[str, list[int]]:
        return {name: answer.tokens for name, answer in self.answers.items()}


def answers(
    runner: TorchRunner,
    *,
    blocks: int,
    guesses: int = 0,
    max_running: int = 16,
    max_tokens: int = 40,
    turns: int = 3,
    adapters: Mapping[str, object] | None = None,
    kinds: Collection[str] = KINDS,
) -> Outcome:
    """Every kind of request so many times over, all together: prompts that repeat, some that are cached.

    :param kinds: names in :data:`KINDS`.
    :param adapters: what the runner read, by name: requests take turns with them and the base model.
    """
    rng = random.Random(1)
    residency = Residency(
        runner.num_slots,
        fetch=lambda digest: _done((adapters or {})[digest]),
        load=runner.load_adapter,
        clear=runner.clear_slot,
        wake=lambda: None,
    )
    cache = PrefixCache(blocks, runner.block_size, base="b", kv_dtype="f")
    limits = Limits(runner.max_model_len, max_running=max_running, token_budget=48, speculate_tokens=guesses)
    scheduler = Scheduler(limits, cache, residency, eos_token_ids=runner.eos_token_ids)
    names = [None, *(adapters or ())]
    found: dict[str, Answer] = {}
    pattern = [rng.randrange(3, 300) for _ in range(9)]
    for turn in range(turns):
        for kind in kinds:
            prompt = pattern * rng.randrange(1, 5) + [rng.randrange(3, 300) for _ in range(turn)]
            params = SamplingParams(**{"max_tokens": max_tokens, "logprobs": 0, **KINDS[kind]})
            name = f"{kind}-{turn}"
            found[name] = Answer()
            tenant, adapter = "ab"[turn % 2], names[len(found) % len(names)]
            scheduler.add(Sequence(name, prompt, params, len(found), tenant, tenant, adapter))
    outcome = Outcome(found, scheduler)
    flight = Flight(runner, scheduler.foresee)
    while scheduler.live or flight:
        for settled in residency.poll(float(outcome.steps), scheduler.turn):
            assert not scheduler.settle(settled)
        batch = scheduler.schedule()
        outcome.steps += bool(batch.rows)
        outcome.ahead += bool(batch.rows) and bool(flight)
        for ended, results in flight.advance(batch):
            for progress in scheduler.postprocess(ended, results):
                answer = found[progress.sequence.request_id]
                answer.tokens += progress.tokens
                answer.logprobs += [entry.logprob for entry in progress.logprobs or ()]
                answer.finish = progress.finish
                assert len(answer.logprobs) == len(answer.tokens)
    scheduler.check_idle()
    return outcome


def _done(value: object) -> Future[object]:
    future: Future[object] = Future()
    future.set_result(value)
    return future
