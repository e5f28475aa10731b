"""What a GPU's kernels are compiled for is all met before the first request."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import inference.runner
from fp8_linear import ops, triton_product
from inference.core.step import BASE_SLOT, Launched, Row
from inference.models.lora import AdapterSites
from inference.protocol import SamplingParams
from inference.runner import TorchRunner
from inference.warm_up import LENGTHS, warm_adapters, warm_steps
from sgmv import FP8, Storage
from tests.inference.test_adapter_kinds import KINDS, save_adapter
from tests.inference.tiny_model import build_tiny_model
from tests.kernels.cpu_graph import KERNELS
from tests.kernels.test_gpu_path import gpu_kernels

__all__ = ["gpu_kernels"]

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="the kernels are compiled here, and cannot run on the CPU"
)
ADAPTERS = ("all linears", "dora", "embedding, head and linears", "dora, head, rank-stabilised")
GREEDY = SamplingParams(temperature=0.0)


class Compiled:
    """Kernels that compute nothing. :ivar found: what each would have been compiled for."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.found: set[tuple[object, ...]] = set()
        for module, name in KERNELS:
            patch.setattr(module, name, _Kernel(name, self.found))


class _Kernel:
    def __init__(self, name: str, found: set[tuple[object, ...]]) -> None:
        self._name, self._found = name, found

    def __getitem__(self, grid: Any) -> Any:
        return self._launch

    def _launch(self, *arguments: Any, **options: Any) -> None:
        types = tuple(each.dtype for each in arguments if isinstance(each, Tensor))
        self._found.add((self._name, types, tuple(sorted((key, str(value)) for key, value in options.items()))))


@pytest.fixture
def compiled(gpu_kernels: None, monkeypatch: pytest.MonkeyPatch) -> Compiled:
    return Compiled(monkeypatch)


def load(model_dir: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> TorchRunner:
    storage = Storage(slots=4, max_rank=64, dtype=FP8 if options.get("adapters") == "fp8" else None)
    monkeypatch.setattr(inference.runner, "_storage", lambda *_: storage)
    return TorchRunner.load(model_dir, num_blocks=16, num_slots=4, max_model_len=256, **options)


def warm(runner: TorchRunner) -> AdapterSites:
    sites = runner._decoder.sites
    warm_adapters(sites, runner._device, runner._dtype)
    warm_steps(runner, runner._most_rows)
    return sites


@pytest.mark.parametrize("adapters", ["full", "fp8"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_no_request_meets_a_kernel_for_the_first_time(
    dtype: str, adapters: str, tmp_path: Path, compiled: Compiled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever its adapter holds; prompts and single tokens, alone and mixed."""
    model_dir = build_tiny_model(tmp_path / "tiny", head_dim=64, attention_bias=True)
    runner = load(model_dir, monkeypatch, dtype=dtype, adapters=adapters)
    warm(runner)
    warmed = set(compiled.found)
    assert {name for name, *_ in warmed} == {name for _, name in KERNELS} - {"multiply", "add_parts"}
    for slot, kind in enumerate(ADAPTERS):
        runner.load_adapter(slot, runner.read_adapter(save_adapter(model_dir, tmp_path / str(slot), slot, KINDS[kind])))
    slots = (BASE_SLOT, 0, 1, 2, 3)
    for length in (1, 2, 40):
        rows = [
            Row([5] * length, 0, range(3 * i, 3 * i + 3), s, GREEDY, prompt=[5] * length) for i, s in enumerate(slots)
        ]
        for batch in (rows, *([row] for row in rows)):
            runner.run(batch)
    assert compiled.found == warmed


def test_every_tile_of_fp8_linears_is_met(tmp_path: Path, compiled: Compiled, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ops._BACKENDS, "cpu", triton_product.multiplied)
    model_dir = build_tiny_model(tmp_path / "tiny", head_dim=64, hidden_size=1024)
    runner = load(model_dir, monkeypatch, dtype="bfloat16", weights="fp8")
    warm(runner)
    warmed = set(compiled.found)
    assert {"multiply", "add_parts"} <= {name for name, *_ in warmed}
    for length in (1, 2, 15, 17, 63, 65, 127, 129, 200):
        runner.run([Row([5] * length, 0, range(16), params=GREEDY, prompt=[5] * length)])
    assert compiled.found == warmed


def test_steps_longer_than_a_sequence_are_met_too(
    tmp_path: Path, compiled: Compiled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sequences of at most 20 positions; eight of them together are a step of 160 tokens."""
    monkeypatch.setitem(ops._BACKENDS, "cpu", triton_product.multiplied)
    monkeypatch.setattr(inference.runner, "_storage", lambda *_: Storage(slots=1, max_rank=64))
    model_dir = build_tiny_model(tmp_path / "tiny", head_dim=64, hidden_size=1024)
    runner = TorchRunner.load(
        model_dir, num_blocks=16, num_slots=0, max_model_len=20, dtype="bfloat16", weights="fp8", most_rows=8
    )
    warm(runner)
    warmed = set(compiled.found)
    for length in (1, 9, 15):
        for count in range(1, 9):
            runner.run([Row([5] * length, 0, range(2), params=GREEDY, prompt=[5] * length) for _ in range(count)])
    assert compiled.found == warmed


def test_as_many_are_drawn_from_at_once_as_ever_will_be(
    tmp_path: Path, compiled: Compiled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The logits of a step, and what is made of them to draw, take more memory than anything else that rows share."""
    runner = load(build_tiny_model(tmp_path / "tiny", head_dim=64), monkeypatch, most_rows=24)
    drawn: list[int] = []
    logits_of = runner.logits

    def logits(hidden: Tensor, places: Sequence[int], slots: Sequence[int]) -> Tensor:
        drawn.append(len(places))
        return logits_of(hidden, places, slots)

    monkeypatch.setattr(runner, "logits", logits)
    warm(runner)
    assert max(drawn) == 24
    assert drawn.count(24) == 3  # greedy, the whole distribution, a nucleus with log-probabilities


@pytest.mark.parametrize("room", [1, 2, 16, 33, 256])
def test_a_small_cache_is_enough(
    room: int, tmp_path: Path, compiled: Compiled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """:param room: positions of the longest sequence."""
    monkeypatch.setattr(inference.runner, "_storage", lambda *_: Storage(slots=1, max_rank=64))
    model_dir = build_tiny_model(tmp_path / "tiny", head_dim=64)
    runner = TorchRunner.load(model_dir, num_blocks=-(-room // 16), num_slots=0, max_model_len=room)
    warm(runner)
    assert max(LENGTHS) > room
    assert "attend" in {name for name, *_ in compiled.found}


@pytest.mark.parametrize(("most_tokens", "longest"), [(512, 2048), (5000, 5000)])
def test_a_step_as_long_as_the_budget_is_computed(
    most_tokens: int, longest: int, tmp_path: Path, compiled: Compiled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The memory that it takes is then kept from adapters."""
    model_dir = build_tiny_model(tmp_path / "tiny", head_dim=64)
    runner = load(model_dir, monkeypatch)
    steps: list[int] = []
    launch = runner.launch

    def launched(rows: Sequence[Row]) -> Launched:
        steps.append(sum(len(row.tokens) for row in rows))
        return launch(rows)

    monkeypatch.setattr(runner, "launch", launched)
    warm_steps(runner, 64, most_tokens)
    assert max(steps) == longest + 1, "and a row that decodes beside it"
