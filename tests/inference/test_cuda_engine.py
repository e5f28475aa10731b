"""The whole engine on a GPU: graphs, steps ahead and sampling there, against the CPU. Needs a CUDA device."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from inference.core.step import UNKNOWN, Row
from inference.protocol import SamplingParams
from inference.runner import TorchRunner
from tests.inference.scheduled import KINDS as REQUESTS
from tests.inference.scheduled import answers
from tests.inference.test_adapter_kinds import KINDS, save_adapter
from tests.inference.tiny_model import build_tiny_model

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
ADAPTERS = ("all linears", "dora", "embedding, head and linears")
GREEDY = SamplingParams(max_tokens=64, temperature=0.0)


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model(tmp_path_factory.mktemp("cuda") / "tiny", head_dim=64)


@pytest.fixture(scope="module")
def sources(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("adapters")
    return {kind: save_adapter(model_dir, folder / str(seed), seed, KINDS[kind]) for seed, kind in enumerate(ADAPTERS)}


def load(model_dir: Path, device: str) -> TorchRunner:
    return TorchRunner.load(
        model_dir, num_blocks=256, num_slots=2, max_model_len=256, dtype="float32", device=device, most_rows=16
    )


@pytest.mark.parametrize("blocks", [24, 256])
def test_the_tokens_are_those_of_the_cpu(model_dir: Path, sources: dict[str, Path], blocks: int) -> None:
    """float32: adapters take each other's slots, requests give way, graphs of every size are replayed."""
    found = {}
    for device in ("cpu", "cuda"):
        runner = load(model_dir, device)
        assert runner.ahead == (device == "cuda")
        adapters = {kind: runner.read_adapter(source) for kind, source in sources.items()}
        found[device] = answers(runner, blocks=blocks, adapters=adapters, kinds=list(REQUESTS))
    assert found["cuda"].tokens == found["cpu"].tokens
    assert found["cuda"].ahead > 0


def test_a_step_waits_for_nothing_but_its_results(model_dir: Path, sources: dict[str, Path]) -> None:
    runner = load(model_dir, "cuda")
    adapters = [runner.read_adapter(source) for source in sources.values()]
    runner.load_adapter(0, adapters[0])
    prompts = [Row([5 + i] * 20, 0, [2 * i, 2 * i + 1], i % 3 - 1, GREEDY, [], [5 + i] * 20, i) for i in range(6)]
    follow = [
        Row([UNKNOWN], 20, row.block_table, row.slot, GREEDY, [UNKNOWN], row.prompt, row.seed, follows=index)
        for index, row in enumerate(prompts)
    ]
    runner.load_adapter(1, adapters[1])
    runner.run(prompts)  # compiles what is left
    torch.cuda.set_sync_debug_mode("error")
    try:
        first = runner.launch(prompts)
        runner.load_adapter(1, adapters[2])
        second = runner.launch(follow)
        runner.clear_slot(1)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert all(result is not None and len(result.tokens) == 1 for step in (first, second) for result in step.results())
