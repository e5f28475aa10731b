"""A whole model with int8 weights: rows alone and in batches, prefixes, adapters, and what its results are called."""

from __future__ import annotations

from pathlib import Path

import pytest

from inference.core.prefix_cache import PrefixCache
from inference.core.step import Row
from inference.errors import ConfigError
from inference.models.int8 import Int8Linear
from inference.runner import TorchRunner
from inference.versions import EngineVersion
from tests.inference.runs import logits_of
from tests.inference.test_runner import GREEDY, generate, make_adapter

pytestmark = pytest.mark.skipif(not Int8Linear.available(), reason="no AVX-512 VNNI")

PROMPT = list(range(10, 75))


def load(directory: Path, weights: str = "int8", dtype: str = "float32") -> TorchRunner:
    return TorchRunner.load(
        directory, num_blocks=128, num_slots=3, max_model_len=128, weights=weights, dtype=dtype, device="cpu"
    )


@pytest.fixture
def runner(tiny_model_dir: Path) -> TorchRunner:
    return load(tiny_model_dir)


def test_close_to_the_full_weights_and_not_the_same(runner: TorchRunner, tiny_model_dir: Path) -> None:
    full = logits_of(load(tiny_model_dir, "full"), PROMPT, [65], range(8))
    int8 = logits_of(runner, PROMPT, [65], range(8))
    assert 0 < float((int8 - full).norm() / full.norm()) < 0.05


def test_a_prefix_computed_before_gives_what_a_cold_run_gives(runner: TorchRunner) -> None:
    cold = generate(runner, PROMPT, -1, 24, first_block=0)
    runner.run([Row(PROMPT[:48], 0, range(10, 18))])
    output, tokens, start = list[int](), PROMPT[48:], 48
    for _ in range(24):
        (result,) = runner.run([Row(tokens, start, range(10, 18), -1, GREEDY, output, PROMPT)])
        assert result is not None
        start, tokens = start + len(tokens), result.tokens
        output += result.tokens
    assert output == cold


def test_a_row_gives_the_same_alone_and_in_a_batch_with_adapters(
    runner: TorchRunner, tiny_model_dir: Path, tmp_path: Path
) -> None:
    for slot in range(2):
        directory = make_adapter(tiny_model_dir, tmp_path / f"a{slot}", seed=slot, rank=4 + 4 * slot)
        runner.load_adapter(slot, runner.read_adapter(directory))
    prompts = {-1: PROMPT, 0: PROMPT[3:40], 1: PROMPT[5:50]}
    alone = {slot: generate(runner, prompt, slot, 16) for slot, prompt in prompts.items()}
    assert len(set(map(tuple, alone.values()))) == 3
    tables = {slot: range(8 * index, 8 * index + 8) for index, slot in enumerate(prompts)}
    outputs: dict[int, list[int]] = {slot: [] for slot in prompts}
    for step in range(16):
        rows = [
            Row(
                prompt if step == 0 else outputs[slot][-1:],
                0 if step == 0 else len(prompt) + step - 1,
                tables[slot],
                slot,
                GREEDY,
                outputs[slot],
                prompt,
            )
            for slot, prompt in prompts.items()
        ]
        for slot, result in zip(prompts, runner.run(rows), strict=True):
            assert result is not None
            outputs[slot] += result.tokens
    assert outputs == alone


def test_an_adapters_difference_is_computed_in_full(runner: TorchRunner, tiny_model_dir: Path, tmp_path: Path) -> None:
    directory = make_adapter(tiny_model_dir, tmp_path / "a", seed=1)
    found = []
    for each in (load(tiny_model_dir, "full"), runner):
        each.load_adapter(0, each.read_adapter(directory))
        found.append(logits_of(each, PROMPT, [65], range(8), 0) - logits_of(each, PROMPT, [65], range(8)))
    full, int8 = found
    assert float((int8 - full).norm() / full.norm()) < 0.15


def test_its_name_is_in_cache_keys_and_answers(runner: TorchRunner, tiny_model_dir: Path) -> None:
    full = load(tiny_model_dir, "full")
    assert (runner.kv_dtype, full.kv_dtype) == ("float32-int8", "float32")
    roots = {PrefixCache(4, 16, base="b", kv_dtype=each.kv_dtype).root(None, "t") for each in (runner, full)}
    assert len(roots) == 2, "what int8 weights computed is never found by a worker with full ones"
    assert "-int8-" in EngineVersion("f" * 64, runner.kv_dtype, "1").tag(None)


def test_what_cannot_be_is_refused_by_name(tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="int4"):
        load(tiny_model_dir, "int4")
    with pytest.raises(ConfigError, match="bfloat16"):
        load(tiny_model_dir, dtype="bfloat16")
    monkeypatch.setattr(Int8Linear, "available", staticmethod(lambda: False))
    with pytest.raises(ConfigError, match="VNNI"):
        load(tiny_model_dir)
