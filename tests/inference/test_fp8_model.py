"""A whole model with fp8 weights: the specification on the CPU, and what a GPU gets in the interpreter."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import fp8_linear.ops
from fp8_linear import Fp8Weight
from fp8_linear.triton_product import multiplied
from inference.core.prefix_cache import PrefixCache
from inference.errors import ConfigError
from inference.models.fp8 import Fp8Linear
from inference.models.linear import make_linear
from inference.runner import TorchRunner
from inference.versions import EngineVersion
from tests.inference.runs import logits_of, reference_logits, relative_error
from tests.inference.test_adapter_kinds import BASES, KINDS, save_adapter, with_adapter
from tests.inference.tiny_model import build_tiny_model

PROMPT = list(range(10, 50))


def load(directory: Path, weights: str = "fp8", dtype: str = "float32") -> TorchRunner:
    return TorchRunner.load(
        directory, num_blocks=32, num_slots=3, max_model_len=128, weights=weights, dtype=dtype, device="cpu"
    )


def rounded(model_dir: Path, adapter: Path | None = None) -> Any:
    """Transformers' model with the weights that ours holds: embedding and head stay as they are."""
    model = with_adapter(model_dir, adapter)
    for name, part in model.named_modules():
        if isinstance(part, torch.nn.Linear) and "lora_" not in name and "lm_head" not in name:
            held = Fp8Weight(part.weight.detach())
            part.weight = torch.nn.Parameter(held.numbers.float() * held.scales[:, None])
    return model


@pytest.mark.parametrize("base", BASES)
def test_equals_transformers_with_the_weights_that_are_held(base: str, tmp_path: Path) -> None:
    model_dir = build_tiny_model(tmp_path / "tiny", **BASES[base])
    found = logits_of(load(model_dir), PROMPT, [25, 1, 14], range(8))
    assert relative_error(found, reference_logits(rounded(model_dir), PROMPT)) <= 1e-5
    assert relative_error(found, reference_logits(with_adapter(model_dir, None), PROMPT)) > 0.01


def test_adapters_add_to_it_what_they_add_to_any_base(tmp_path: Path) -> None:
    """DoRA's lengths are those of the full weights, as it was trained: PEFT on the rounded ones measures others."""
    model_dir = build_tiny_model(tmp_path / "tiny", **BASES["untied qwen2"])
    runner = load(model_dir)
    for slot, kind in enumerate(("all linears", "embedding, head and linears", "dora")):
        adapter = save_adapter(model_dir, tmp_path / str(slot), slot, KINDS[kind])
        runner.load_adapter(slot, runner.read_adapter(adapter))
        theirs = reference_logits(rounded(model_dir, adapter), PROMPT)
        error = relative_error(logits_of(runner, PROMPT, [40], range(8), slot), theirs)
        assert error <= (0.08 if kind == "dora" else 1e-5), kind


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(fp8_linear.ops._BACKENDS, "cpu", multiplied)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the kernels are compiled here, and cannot run on the CPU")
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_gpus_kernels_give_what_the_specification_gives(
    dtype: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Linears with biases, residuals, and a head of its own; as close as two orders of sums are in the type."""
    model_dir = build_tiny_model(tmp_path / "tiny", **BASES["llama with biases"])
    runner = load(model_dir, dtype=dtype)
    expected = logits_of(runner, PROMPT, [25, 15], range(8))
    request.getfixturevalue("kernels")
    found = logits_of(runner, PROMPT, [25, 15], range(8))
    assert relative_error(found, expected) < (0.05 if dtype == "bfloat16" else 0.006)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the kernels are compiled here, and cannot run on the CPU")
@pytest.mark.usefixtures("kernels")
def test_float32_is_refused_where_the_kernels_are(tmp_path: Path) -> None:
    runner = load(build_tiny_model(tmp_path / "tiny"))
    with pytest.raises(ValueError, match=r"float32; there are kernels for torch\.bfloat16, torch\.float16"):
        logits_of(runner, PROMPT, [40], range(8))
    with pytest.raises(ConfigError, match="bfloat16 or float16, not float32"):
        make_linear(torch.zeros(4, 4, device="meta"), held="fp8")


def test_its_name_is_in_cache_keys_and_answers(tmp_path: Path) -> None:
    model_dir = build_tiny_model(tmp_path / "tiny")
    runners = [load(model_dir, weights) for weights in ("full", "fp8")]
    assert [runner.kv_dtype for runner in runners] == ["float32", "float32-fp8"]
    roots = {PrefixCache(4, 16, base="b", kv_dtype=each.kv_dtype).root(None, "t") for each in runners}
    assert len(roots) == 2
    assert "-fp8-" in EngineVersion("f" * 64, runners[1].kv_dtype, "1").tag(None)


def test_a_weight_that_is_not_finite_is_refused() -> None:
    with pytest.raises(ConfigError, match="fp8 weights: weight: a number is not finite"):
        make_linear(torch.full((4, 4), torch.nan), held="fp8")


@pytest.mark.parametrize("compute", [Fp8Linear.__call__, lambda linear, x: linear.add(x, torch.ones(3, 8))])
def test_what_comes_back_is_the_callers_own(compute: Callable[[Fp8Linear, Tensor], Tensor]) -> None:
    linear = Fp8Linear(torch.ones(8, 16), torch.ones(8))
    x = torch.ones(3, 16)
    first = compute(linear, x)
    first.zero_()
    assert compute(linear, x).ne(0).all()
