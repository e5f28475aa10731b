"""Guessed tokens on a real decoder: the same tokens and log-probabilities as without, in fewer steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from inference.runner import TorchRunner
from tests.inference.scheduled import answers


@pytest.mark.parametrize("blocks", [24, 256])
def test_guesses_change_no_token(tiny_model_dir: Path, blocks: int) -> None:
    runner = TorchRunner.load(tiny_model_dir, num_blocks=256, num_slots=0, max_model_len=256, threads=1)
    plain = answers(runner, blocks=blocks)
    guessed = answers(runner, guesses=5, blocks=blocks)
    for name, answer in plain.answers.items():
        assert guessed.answers[name].tokens == answer.tokens, name
        assert guessed.answers[name].finish == answer.finish
        assert guessed.answers[name].logprobs == pytest.approx(answer.logprobs, abs=1e-4)
    assert {answer.finish for answer in plain.answers.values()} == {"stop", "length"}
    assert guessed.scheduler.portions.right > 50
    assert plain.scheduler.portions.guessed == 0
    if blocks == 24:
        assert guessed.scheduler.preemptions > 0
        assert plain.scheduler.preemptions > 0
    else:
        assert guessed.steps < plain.steps
