"""A GPU's steps without a GPU: on a device that has no numbers, nothing that the host does waits for any."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import inference.runner
import sgmv.ops
from inference.core.step import BASE_SLOT, UNKNOWN, Row
from inference.errors import InferenceError
from inference.protocol import SamplingParams
from inference.runner import TorchRunner
from sgmv import FP8, Storage
from tests.inference.no_waiting import DEVICE, no_waiting
from tests.inference.test_adapter_kinds import KINDS, save_adapter
from tests.inference.tiny_model import build_tiny_model
from tests.kernels.cpu_graph import KERNELS
from tests.kernels.test_gpu_path import gpu_kernels

__all__ = ["gpu_kernels"]

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="tests/kernels/test_cuda.py does it on a GPU")
ADAPTERS = ("all linears", "dora", "embedding, head and linears", "dora, head, rank-stabilised")


class _Launches:
    """A kernel that does nothing."""

    def __init__(self) -> None:
        self.count = 0

    def __getitem__(self, grid: Any) -> Any:
        return self._launch

    def _launch(self, *arguments: Any, **options: Any) -> None:
        self.count += 1


@pytest.fixture
def launches(gpu_kernels: None, monkeypatch: pytest.MonkeyPatch) -> _Launches:
    found = _Launches()
    for module, name in KERNELS:
        monkeypatch.setattr(module, name, found)
    monkeypatch.setitem(sgmv.ops._BACKENDS, DEVICE.type, sgmv.ops._BACKENDS["cpu"])
    monkeypatch.setattr(inference.runner, "choose", lambda *_: (DEVICE, torch.float32))
    monkeypatch.setattr(inference.runner, "_storage", lambda *_: Storage(slots=4, max_rank=64))
    return found


PARAMS = (
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.9),
    SamplingParams(temperature=0.9, top_p=0.9, top_k=20, min_p=0.01, logprobs=3),
    SamplingParams(temperature=0.5, logit_bias={4: 1.0}, min_tokens=5, logprobs=0),
    SamplingParams(repetition_penalty=1.1, presence_penalty=0.5),
)


def prompts(count: int) -> list[Row]:
    return [
        Row([5 + i] * 9, 0, [2 * i, 2 * i + 1], slot, params, [], [5 + i] * 9, i, prompt_logprobs=2 if i == 4 else None)
        for i, (slot, params) in enumerate(zip((BASE_SLOT, 0, 1, 2, 3), PARAMS, strict=True))
    ][:count]


def following(rows: list[Row]) -> list[Row]:
    """The step after those: none of their tokens is known."""
    return [
        Row([UNKNOWN], 9, row.block_table, row.slot, row.params, [UNKNOWN], row.prompt, row.seed, follows=index)
        for index, row in enumerate(rows)
    ]


def test_neither_steps_nor_adapters_wait(tmp_path: Path, launches: _Launches) -> None:
    model_dir = build_tiny_model(tmp_path / "tiny", head_dim=64)
    runner = TorchRunner.load(model_dir, num_blocks=16, num_slots=4, max_model_len=64, most_rows=5)
    runner.go_ahead(lambda work: work)
    read = [
        runner.read_adapter(save_adapter(model_dir, tmp_path / str(slot), slot, KINDS[kind]))
        for slot, kind in enumerate(ADAPTERS)
    ]
    with no_waiting():
        for slot, adapter in enumerate(read):
            runner.load_adapter(slot, adapter)
        before = launches.count
        for count in range(1, 6):
            runner.launch(prompts(count))
            if count < 5:  # the fifth has penalties: who reads its tokens waits
                runner.launch(following(prompts(count)))
        runner.launch([*following(prompts(4)), *prompts(5)[4:]])
        runner.clear_slot(2)
        runner.load_adapter(2, read[0])
    assert launches.count - before > 10 * 2 * 3


class _HostWork(TorchDispatchMode):
    """:ivar found: operations on the host's tensors, but for rows of tables and the like."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [each for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
        if any(each.device.type == "cpu" and each.numel() > 64 for each in given):
            self.found.append(func._schema.name)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("held", [None, FP8])
def test_a_load_only_copies(
    tmp_path: Path, launches: _Launches, monkeypatch: pytest.MonkeyPatch, held: torch.dtype | None
) -> None:
    """What the host can do before the adapter goes to the device is not done between two steps: all requests wait."""
    monkeypatch.setattr(inference.runner, "_storage", lambda *_: Storage(slots=4, max_rank=64, dtype=held))
    model_dir = build_tiny_model(tmp_path / "tiny", head_dim=64)
    runner = TorchRunner.load(model_dir, num_blocks=16, num_slots=4, max_model_len=64)
    adapter = runner.read_adapter(save_adapter(model_dir, tmp_path / "a", 0, KINDS["all linears"]))
    for _ in range(2):
        with _HostWork() as work:
            runner.load_adapter(0, adapter)
        assert work.found == ["aten::_to_copy"]


def test_what_is_read_does_wait(tmp_path: Path, launches: _Launches) -> None:
    model_dir = build_tiny_model(tmp_path / "tiny", head_dim=64)
    runner = TorchRunner.load(model_dir, num_blocks=16, num_slots=4, max_model_len=64)
    with pytest.raises(InferenceError, match="Cannot copy out of meta tensor"), no_waiting():
        runner.launch(prompts(1))  # not ahead: the host chooses
