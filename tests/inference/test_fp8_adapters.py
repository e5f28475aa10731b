"""Adapters held as fp8 by a whole runner: what rounding costs against PEFT, and who is not touched by it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from inference.core.prefix_cache import PrefixCache
from inference.core.step import Row
from inference.errors import ConfigError
from inference.runner import TorchRunner
from tests.inference.runs import logits_of, reference_logits
from tests.inference.test_adapter_kinds import BASES, KINDS, TOKENS, save_adapter, with_adapter
from tests.inference.tiny_model import build_tiny_model

ROUNDING = 0.1
"""Of the length by which an adapter changes the logits. Measured: 0.03 for an adapted head alone, up to 0.083 where
every linear of both layers is adapted; a product of one adapter costs 0.04 (kernels/sgmv/README.md).
"""
ONLY_EMBEDDING = "embedding"
"""The kind that has nothing that is held as fp8."""


def load(model_dir: Path, num_slots: int, adapters: str = "fp8", dtype: str = "float32") -> TorchRunner:
    return TorchRunner.load(
        model_dir, num_blocks=64, num_slots=num_slots, max_model_len=128, dtype=dtype, adapters=adapters
    )


@pytest.mark.parametrize("base", BASES)
def test_each_kind_is_as_close_to_peft_as_is_said(base: str, tmp_path: Path) -> None:
    model_dir = build_tiny_model(tmp_path / "tiny", **BASES[base])
    runner = load(model_dir, len(KINDS))
    plain = reference_logits(with_adapter(model_dir, None), TOKENS)
    for slot, (kind, options) in enumerate(KINDS.items()):
        adapter = save_adapter(model_dir, tmp_path / str(slot), slot, options)
        runner.load_adapter(slot, runner.read_adapter(adapter))
        theirs = reference_logits(with_adapter(model_dir, adapter), TOKENS)
        ours = logits_of(runner, TOKENS, [37, 1, 22], range(8), slot)
        cost = float((ours - theirs).norm() / (theirs - plain).norm())
        if kind == ONLY_EMBEDDING:
            assert cost < 1e-5
        else:
            assert 1e-3 < cost < ROUNDING, kind


def hidden_of(runner: TorchRunner, slots: list[int]) -> Tensor:
    """Of one batch: 30 tokens of each slot's own prompt."""
    rows = [
        Row(list(range(10 + index, 40 + index)), 0, range(4 * index, 4 * index + 4), slot)
        for index, slot in enumerate(slots)
    ]
    with torch.inference_mode():
        return runner.compute(rows).view(len(slots), 30, -1)


def test_rows_without_an_adapter_have_the_bits_of_a_runner_that_holds_all_in_full(tmp_path: Path) -> None:
    """They share a batch with adapters; those have other bits."""
    model_dir = build_tiny_model(tmp_path / "tiny")
    less, full = load(model_dir, 3), load(model_dir, 3, "full")
    for slot, kind in enumerate(("all linears", "dora", "embedding, head and linears")):
        adapter = save_adapter(model_dir, tmp_path / str(slot), slot, KINDS[kind])
        for runner in (full, less):
            runner.load_adapter(slot, runner.read_adapter(adapter))
    slots = [-1, 0, -1, 1, 2, -1]
    found, expected = hidden_of(less, slots), hidden_of(full, slots)
    for index, slot in enumerate(slots):
        assert torch.equal(found[index], expected[index]) == (slot < 0)


def test_a_poisoned_slot_reaches_nobody_else(tmp_path: Path) -> None:
    model_dir = build_tiny_model(tmp_path / "tiny")
    runner = load(model_dir, 2)
    for slot in range(2):
        adapter = save_adapter(model_dir, tmp_path / str(slot), slot, KINDS["dora"])
        runner.load_adapter(slot, runner.read_adapter(adapter))
    clean = hidden_of(runner, [0, 1, -1])
    poisoned = runner.read_adapter(tmp_path / "1")
    for layer in poisoned.layers:
        for weights in layer.sites.values():
            for matrix in (*weights.a, *weights.b):
                if matrix is not None:
                    matrix.fill_(float("nan"))
    runner.load_adapter(1, poisoned)
    dirty = hidden_of(runner, [0, 1, -1])
    assert torch.equal(dirty[[0, 2]], clean[[0, 2]])
    assert dirty[1].isnan().any()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_takes_the_type_that_the_worker_computes_in(dtype: str, tmp_path: Path) -> None:
    """Half the bytes of a 16-bit type, but for a factor of 4 bytes a rank."""
    model_dir = build_tiny_model(tmp_path / "tiny")
    runner = load(model_dir, 1, dtype=dtype)
    adapter = save_adapter(model_dir, tmp_path / "a", 0, KINDS["rank-stabilised"])
    runner.load_adapter(0, runner.read_adapter(adapter))
    theirs = reference_logits(with_adapter(model_dir, adapter), TOKENS)
    plain = reference_logits(with_adapter(model_dir, None), TOKENS)
    ours = logits_of(runner, TOKENS, [60], range(8), 0)
    assert float((ours - theirs).norm() / (theirs - plain).norm()) < 1.5 * ROUNDING
    host = runner.adapter_bytes(runner.read_adapter(adapter))
    factors = 4 * 16 * 7 * 2  # of each rank of seven linears in two layers
    assert runner._slots.num_bytes == host // 2 + factors


def test_its_name_is_in_cache_keys_and_what_is_unknown_is_refused(tmp_path: Path) -> None:
    model_dir = build_tiny_model(tmp_path / "tiny")
    runners = [load(model_dir, 1, adapters) for adapters in ("full", "fp8")]
    assert [runner.kv_dtype for runner in runners] == ["float32", "float32-adapters-fp8"]
    roots = {PrefixCache(4, 16, base="b", kv_dtype=each.kv_dtype).root("a" * 64, "t") for each in runners}
    assert len(roots) == 2
    with pytest.raises(ConfigError, match="fp4"):
        load(model_dir, 1, "fp4")
