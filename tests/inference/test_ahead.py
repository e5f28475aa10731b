"""Steps launched before the one before is read, on a real decoder: nothing changes but who waits for whom."""

from __future__ import annotations

from pathlib import Path

import pytest

from inference.runner import TorchRunner
from tests.inference.scheduled import KINDS as REQUESTS
from tests.inference.scheduled import answers
from tests.inference.test_adapter_kinds import KINDS, save_adapter

ADAPTERS = ("all linears", "dora", "embedding, head and linears")
PENALISED = ("penalties", "cycle", "loop until 6")
FREE = [kind for kind in REQUESTS if kind not in PENALISED]


@pytest.mark.parametrize(("blocks", "kinds"), [(24, FREE), (256, list(REQUESTS))], ids=["foreseeable", "all"])
def test_the_tokens_are_those_of_steps_that_are_waited_for(
    tiny_model_dir: Path, tmp_path: Path, blocks: int, kinds: list[str]
) -> None:
    """Greedy and drawn, with log-probabilities, stops, penalties and preemptions; adapters come and go meanwhile."""
    runner = TorchRunner.load(tiny_model_dir, num_blocks=256, num_slots=2, max_model_len=256, threads=1)
    adapters = {
        kind: runner.read_adapter(save_adapter(tiny_model_dir, tmp_path / str(seed), seed, KINDS[kind]))
        for seed, kind in enumerate(ADAPTERS)
    }
    plain = answers(runner, blocks=blocks, adapters=adapters, kinds=kinds)
    runner.go_ahead()
    ahead = answers(runner, blocks=blocks, adapters=adapters, kinds=kinds)
    for name, answer in plain.answers.items():
        assert ahead.answers[name].tokens == answer.tokens, name
        assert ahead.answers[name].finish == answer.finish
        assert ahead.answers[name].logprobs == pytest.approx(answer.logprobs, abs=1e-4)
    assert {answer.finish for answer in plain.answers.values()} == {"stop", "length"}
    assert plain.ahead == 0
    assert ahead.ahead > 0.9 * ahead.steps if kinds is FREE else 0 < ahead.ahead < ahead.steps
    if blocks == 24:
        assert ahead.scheduler.preemptions > 0
        assert plain.scheduler.preemptions > 0


def test_guesses_and_steps_ahead_stand_beside_each_other(tiny_model_dir: Path) -> None:
    runner = TorchRunner.load(tiny_model_dir, num_blocks=256, num_slots=0, max_model_len=256, threads=1)
    plain = answers(runner, blocks=256)
    runner.go_ahead()
    guessed = answers(runner, guesses=5, blocks=256)
    assert guessed.tokens == plain.tokens
    assert guessed.scheduler.portions.right > 50
