"""Guessed tokens on a real decoder: the same tokens and log-probabilities as without, in fewer steps."""

from __future__ import annotations

import random
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

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


def answers(runner: TorchRunner, guesses: int, blocks: int) -> tuple[dict[str, Answer], Scheduler, int]:
    """Every kind of request three times over, all together: prompts that repeat, some that are cached."""
    rng = random.Random(1)
    residency = Residency(
        0, fetch=lambda digest: Future(), load=runner.load_adapter, clear=runner.clear_slot, wake=lambda: None
    )
    cache = PrefixCache(blocks, runner.block_size, base="b", kv_dtype="f")
    limits = Limits(256, max_running=16, token_budget=48, speculate_tokens=guesses)
    scheduler = Scheduler(limits, cache, residency, eos_token_ids=runner.eos_token_ids)
    found: dict[str, Answer] = {}
    pattern = [rng.randrange(3, 300) for _ in range(9)]
    for turn in range(3):
        for kind, values in KINDS.items():
            prompt = pattern * rng.randrange(1, 5) + [rng.randrange(3, 300) for _ in range(turn)]
            params = SamplingParams(**{"max_tokens": 40, "logprobs": 0, **values})
            name = f"{kind}-{turn}"
            found[name] = Answer()
            scheduler.add(Sequence(name, prompt, params, len(found), "ab"[turn % 2], "ab"[turn % 2], None))
    steps = 0
    while scheduler.live:
        batch = scheduler.schedule()
        steps += 1
        for progress in scheduler.postprocess(batch, runner.run(batch.rows)):
            answer = found[progress.sequence.request_id]
            answer.tokens += progress.tokens
            answer.logprobs += [entry.logprob for entry in progress.logprobs or ()]
            answer.finish = progress.finish
            assert len(answer.logprobs) == len(answer.tokens)
    scheduler.check_idle()
    return found, scheduler, steps


@pytest.mark.parametrize("blocks", [24, 256])
def test_guesses_change_no_token(tiny_model_dir: Path, blocks: int) -> None:
    runner = TorchRunner.load(tiny_model_dir, num_blocks=256, num_slots=0, max_model_len=256, threads=1)
    plain, without, steps = answers(runner, 0, blocks)
    guessed, scheduler, fewer = answers(runner, 5, blocks)
    for name, answer in plain.items():
        assert guessed[name].tokens == answer.tokens, name
        assert guessed[name].finish == answer.finish
        assert guessed[name].logprobs == pytest.approx(answer.logprobs, abs=1e-4)
    assert {answer.finish for answer in plain.values()} == {"stop", "length"}
    assert scheduler.portions.right > 50
    assert without.portions.guessed == 0
    if blocks == 24:
        assert scheduler.preemptions > 0
        assert without.preemptions > 0
    else:
        assert fewer < steps
