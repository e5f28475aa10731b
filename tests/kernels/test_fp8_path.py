"""Base weights and adapters in fp8 on the whole path of a GPU, in the interpreter, with and without graphs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import fp8_linear.ops
import inference.runner
from fp8_linear.triton_product import multiplied
from inference.runner import TorchRunner
from sgmv import FP8, Storage
from tests.inference.runs import Stream, logits_of, relative_error, run_greedy
from tests.inference.test_adapter_kinds import KINDS, save_adapter
from tests.inference.tiny_model import build_tiny_model
from tests.kernels.cpu_graph import Capturing
from tests.kernels.test_gpu_path import gpu_kernels

__all__ = ["gpu_kernels"]

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the kernels are compiled here, not interpreted")
ADAPTERS = ("all linears", "dora, head, rank-stabilised")
TOKENS = list(range(20, 44))


def load(model_dir: Path, sources: list[Path]) -> TorchRunner:
    options = {"weights": "fp8", "adapters": "fp8", "dtype": "float16", "device": "cpu"}
    runner = TorchRunner.load(model_dir, num_blocks=16, num_slots=2, max_model_len=64, most_rows=3, **options)  # type: ignore[arg-type]
    for slot, source in enumerate(sources):
        runner.load_adapter(slot, runner.read_adapter(source))
    return runner


def tokens_of(runner: TorchRunner) -> list[list[int]]:
    """Of a prompt of each adapter's and of the base model's, decoded together, one of them for longer."""
    streams = [Stream(TOKENS[slot:], [24 - slot], range(4 * slot, 4 * slot + 4), slot=slot) for slot in (0, 1)]
    streams.append(Stream(TOKENS[5:], [19], range(8, 12)))
    run_greedy(runner, streams, 3)
    run_greedy(runner, streams[:1], 5)
    return [stream.output for stream in streams]


@pytest.mark.slow
def test_a_gpus_path_gives_what_the_specification_gives_and_graphs_the_same_tokens(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    model_dir = build_tiny_model(tmp_path / "tiny", head_dim=64, num_hidden_layers=1)
    sources = [save_adapter(model_dir, tmp_path / str(seed), seed, KINDS[kind]) for seed, kind in enumerate(ADAPTERS)]
    plain = load(model_dir, sources)
    expected = {slot: logits_of(plain, TOKENS, [24], range(4), slot) for slot in (-1, 0, 1)}
    request.getfixturevalue("gpu_kernels")
    monkeypatch.setitem(fp8_linear.ops._BACKENDS, "cpu", multiplied)
    monkeypatch.setattr(inference.runner, "_storage", lambda *_: Storage(slots=2, max_rank=64, dtype=FP8))
    runner = load(model_dir, sources)
    for slot, logits in expected.items():
        assert relative_error(logits_of(runner, TOKENS, [24], range(4), slot), logits) < 0.01
    tokens = tokens_of(runner)
    capturing = Capturing(monkeypatch)
    runner.go_ahead(capturing)
    tried = capturing.replays
    assert tokens_of(runner) == tokens
    assert capturing.replays - tried == 4
