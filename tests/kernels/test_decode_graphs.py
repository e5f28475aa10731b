"""The engine's decode steps as graphs: captured before anything is loaded, replayed for whatever comes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import inference.runner
from inference.decode_graphs import Kind, sizes
from inference.runner import TorchRunner
from sgmv import Storage
from tests.inference.scheduled import Outcome, answers
from tests.inference.test_adapter_kinds import KINDS, save_adapter
from tests.inference.tiny_model import build_tiny_model
from tests.kernels.cpu_graph import Capturing
from tests.kernels.test_gpu_path import gpu_kernels

__all__ = ["gpu_kernels"]

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the kernels are compiled here, not interpreted")
ADAPTERS = ("all linears", "dora", "embedding, head and linears")
REQUESTS = ("greedy", "nucleus", "stops", "coin", "loop", "sampled")


@pytest.mark.parametrize("most", [1, 2, 3, 4, 7, 8, 9, 64, 65, 200, 300, 1024])
def test_every_batch_finds_a_size(most: int) -> None:
    found = sizes(most)
    assert found == sorted(set(found))
    assert found[-1] == most
    for rows in range(1, most + 1):
        size = next(size for size in found if size >= rows)
        assert size - rows < max(8, rows // 4 + 1)


@pytest.mark.slow
def test_replayed_steps_give_the_tokens_of_computed_ones(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests come, go, and give way; adapters take each other's slots; each size meets every kind of batch."""
    model_dir = build_tiny_model(tmp_path / "tiny", head_dim=64, num_hidden_layers=1)
    sources = [save_adapter(model_dir, tmp_path / str(seed), seed, KINDS[kind]) for seed, kind in enumerate(ADAPTERS)]
    limits = {"max_running": 2, "blocks": 12, "max_tokens": 6, "turns": 1}

    def run(runner: TorchRunner) -> Outcome:
        adapters = {kind: runner.read_adapter(source) for kind, source in zip(ADAPTERS, sources, strict=True)}
        return answers(runner, adapters=adapters, kinds=REQUESTS, **limits)

    def load() -> TorchRunner:
        return TorchRunner.load(model_dir, num_blocks=16, num_slots=2, max_model_len=64, most_rows=2)

    plain = run(load())  # the CPU's own loops: the interpreter takes seconds a step
    request.getfixturevalue("gpu_kernels")
    monkeypatch.setattr(inference.runner, "_storage", lambda *_: Storage(slots=2, max_rank=64))
    runner = load()
    capturing = Capturing(monkeypatch)
    runner.go_ahead(capturing)
    assert len(capturing.graphs) == len(sizes(2)) * len(Kind)
    replayed = run(runner)
    assert replayed.tokens == plain.tokens
    assert {name: answer.finish for name, answer in replayed.answers.items()} == {
        name: answer.finish for name, answer in plain.answers.items()
    }
    assert capturing.replays > replayed.steps // 2
    launches = [graph.launches for graph in capturing.graphs]
    base, adapted, gained = launches[:3]
    assert base < adapted < gained
    assert launches == [base, adapted, gained] * len(sizes(2))
