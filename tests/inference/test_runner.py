"""The runner: adapters in slots, rows that join and leave, and nothing of one row in another."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from inference.adapter_format import content_digest
from inference.core.step import Row
from inference.errors import AdapterInvalid
from inference.protocol import SamplingParams
from inference.runner import TorchRunner

GREEDY = SamplingParams(temperature=0.0)


@pytest.fixture
def runner(tiny_model_dir: Path) -> TorchRunner:
    return TorchRunner.load(tiny_model_dir, num_blocks=64, num_slots=3, max_model_len=128)


def make_adapter(model_dir: Path, out: Path, seed: int, rank: int = 4) -> Path:
    torch.manual_seed(seed)
    base = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    model = get_peft_model(base, LoraConfig(r=rank, target_modules="all-linear", init_lora_weights=False))
    model.save_pretrained(str(out))
    (out / "README.md").unlink(missing_ok=True)
    return out


def generate(runner: TorchRunner, prompt: list[int], slot: int, count: int, first_block: int = 0) -> list[int]:
    blocks, output = list(range(first_block, first_block + 8)), list[int]()
    tokens, start = prompt, 0
    for _ in range(count):
        (result,) = runner.run([Row(tokens, start, blocks, slot, GREEDY, output, prompt)])
        assert result is not None
        (token,) = result.tokens
        start, tokens = start + len(tokens), [token]
        output.append(token)
    return output


def test_a_slot_changes_its_own_rows_alone_and_clearing_it_restores_the_base(
    runner: TorchRunner, tiny_model_dir: Path, tmp_path: Path
) -> None:
    prompt = list(range(10, 40))
    base = generate(runner, prompt, -1, 20)
    for slot in (0, 1):
        runner.load_adapter(slot, runner.read_adapter(make_adapter(tiny_model_dir, tmp_path / str(slot), slot)))
    first, second = generate(runner, prompt, 0, 20), generate(runner, prompt, 1, 20)
    assert len({tuple(base), tuple(first), tuple(second)}) == 3
    assert generate(runner, prompt, -1, 20) == base
    runner.load_adapter(0, runner.read_adapter(tmp_path / "1"))
    assert generate(runner, prompt, 0, 20) == second, "a replaced slot keeps nothing"
    runner.clear_slot(0)
    assert generate(runner, prompt, 0, 20) == base


def test_a_row_gives_the_same_tokens_alone_and_in_a_changing_batch(
    runner: TorchRunner, tiny_model_dir: Path, tmp_path: Path
) -> None:
    runner.load_adapter(2, runner.read_adapter(make_adapter(tiny_model_dir, tmp_path / "a", 1, rank=5)))
    prompts = [list(range(10 + i, 30 + 7 * i)) for i in range(6)]
    slots = [2, -1, 2, -1, -1, 2]
    alone = [generate(runner, prompt, slot, 12) for prompt, slot in zip(prompts, slots, strict=True)]
    outputs: list[list[int]] = [[] for _ in prompts]
    for step in range(12 + len(prompts)):
        active = [i for i in range(len(prompts)) if i <= step and len(outputs[i]) < 12]
        rows = []
        for i in active:
            tokens = outputs[i][-1:] or prompts[i]
            start = len(prompts[i]) + len(outputs[i]) - 1 if outputs[i] else 0
            rows.append(Row(tokens, start, list(range(10 * i, 10 * i + 8)), slots[i], GREEDY, outputs[i], prompts[i]))
        for i, result in zip(active, runner.run(rows), strict=True):
            assert result is not None
            outputs[i] += result.tokens
    assert outputs == alone


def test_rows_without_sampling_parameters_return_none_in_their_place(runner: TorchRunner) -> None:
    rows = [Row([5, 6], 0, [0], slot=2), Row([7], 0, [1], slot=-1, params=GREEDY), Row([8, 9], 0, [2], slot=1)]
    results = runner.run(rows)
    assert results[0] is None
    assert results[1] is not None
    assert len(results[1].tokens) == 1
    assert results[2] is None
    assert runner.run([]) == []


def test_what_other_blocks_hold_never_reaches_a_row(runner: TorchRunner) -> None:
    prompt = list(range(20, 50))
    expected = generate(runner, prompt, -1, 8, first_block=8)
    runner._attention._keys.fill_(float("nan"))  # type: ignore[attr-defined]
    runner._attention._values.fill_(float("nan"))  # type: ignore[attr-defined]
    assert generate(runner, prompt, -1, 8, first_block=8) == expected


def test_a_directory_named_by_another_digest_is_refused(
    runner: TorchRunner, tiny_model_dir: Path, tmp_path: Path
) -> None:
    adapter = make_adapter(tiny_model_dir, tmp_path / "plain", 3)
    right = adapter.rename(tmp_path / content_digest(adapter))
    runner.load_adapter(0, runner.read_adapter(right))
    with pytest.raises(AdapterInvalid, match="digest"):
        runner.read_adapter(right.rename(tmp_path / ("0" * 64)))


def test_slots_out_of_range_and_foreign_objects_are_refused(runner: TorchRunner) -> None:
    with pytest.raises(IndexError, match="slot 3"):
        runner.clear_slot(3)
    with pytest.raises(TypeError, match="str"):
        runner.load_adapter(0, "adapter")
