"""The engine's decode steps as graphs: captured before anything is loaded, replayed for whatever comes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import inference.decode_graphs
import inference.runner
from inference.attention.triton_backend import TritonAttention
from inference.decode_graphs import Capture, Kind, sizes
from inference.device_room import DeviceRoom
from inference.errors import ConfigError
from inference.runner import TorchRunner
from sgmv import Storage
from tests.inference.scheduled import Outcome, answers
from tests.inference.test_adapter_kinds import KINDS, save_adapter
from tests.inference.tiny_model import build_tiny_model
from tests.kernels.cpu_graph import Capturing
from tests.kernels.test_gpu_path import gpu_kernels
from tests.kernels.test_warm_up import Compiled

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


class Cuda:
    """torch's calls that a start makes, on a machine without a GPU. :ivar calls: names, in order."""

    def __init__(self, patch: pytest.MonkeyPatch, told: str | None = None) -> None:
        """:param told: the error of which the device's work is known when it has been waited for."""
        self.calls: list[str] = []

        def synchronize(device: torch.device) -> None:
            self.calls.append("synchronize")
            if told is not None:
                raise RuntimeError(told)

        def room(device: torch.device, kept: int) -> None:
            self.calls.append("room")

        for name in ("memory_allocated", "max_memory_allocated", "reset_peak_memory_stats"):
            patch.setattr(torch.cuda, name, lambda device: 0)
        patch.setattr(torch.cuda, "synchronize", synchronize)
        patch.setattr(DeviceRoom, "of", room)

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        self.calls.append("capture")
        return lambda: self.calls.append("replay")


def started(model_dir: Path, patch: pytest.MonkeyPatch, capture: Capture) -> None:
    patch.setattr(inference.runner, "_storage", lambda *_: Storage(slots=1, max_rank=64))
    patch.setattr(inference.decode_graphs, "cuda_capture", lambda: capture)
    runner = TorchRunner.load(model_dir, num_blocks=16, num_slots=0, max_model_len=64, most_rows=2)
    runner._start_device(eager=False, most_tokens=32, alone=True)


@pytest.fixture
def model_dir(tmp_path: Path, gpu_kernels: None, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of a model whose kernels compute nothing."""
    Compiled(monkeypatch)
    return build_tiny_model(tmp_path / "tiny", head_dim=64, num_hidden_layers=1)


def test_every_graph_is_replayed_before_the_first_request(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it takes of the device when it runs for the first time is not given to adapters."""
    cuda = Cuda(monkeypatch)
    started(model_dir, monkeypatch, cuda.capture)
    of_one_size = ["capture"] * len(Kind) + ["replay"] * len(Kind)
    assert cuda.calls == [*of_one_size * len(sizes(2)), "synchronize", "room"]


def test_a_graph_that_cannot_be_replayed_ends_the_start(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def capture(work: Callable[[], None]) -> Callable[[], None]:
        def replay() -> None:
            raise RuntimeError("CUDA error: not permitted\nmore")

        return replay

    cuda = Cuda(monkeypatch)
    with pytest.raises(ConfigError, match=r"CUDA graphs \(CUDA error: not permitted\); --eager works without"):
        started(model_dir, monkeypatch, capture)
    assert "room" not in cuda.calls


def test_what_the_device_tells_later_of_a_graph_ends_the_start_too(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda = Cuda(monkeypatch, "CUDA error: an illegal memory access was encountered")
    with pytest.raises(ConfigError, match=r"an illegal memory access was encountered\); --eager works without"):
        started(model_dir, monkeypatch, cuda.capture)
    assert "room" not in cuda.calls


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
    assert isinstance(runner._attention, TritonAttention)
    pools = [*runner._attention._keys, *runner._attention._values]
    for pool in pools:
        pool.fill_(0.5)
    runner.go_ahead(capturing)
    assert capturing.replays == len(capturing.graphs) == len(sizes(2)) * len(Kind), "each has been tried"
    assert all(bool((pool == 0.5).all()) for pool in pools), "and has stored nothing"
    replayed = run(runner)
    assert replayed.tokens == plain.tokens
    assert {name: answer.finish for name, answer in replayed.answers.items()} == {
        name: answer.finish for name, answer in plain.answers.items()
    }
    assert capturing.replays - len(capturing.graphs) > replayed.steps // 2
    launches = [graph.launches for graph in capturing.graphs]
    base, adapted, gained = launches[:3]
    assert base < adapted < gained
    assert launches == [base, adapted, gained] * len(sizes(2))
