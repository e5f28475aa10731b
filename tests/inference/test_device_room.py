"""Adapters do not take the memory that steps need."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from inference.attention.make import block_bytes
from inference.attention.torch_backend import TorchAttention
from inference.config import CPU_BLOCKS, WorkerConfig
from inference.core.process import load
from inference.device_room import DeviceRoom, blocks_that_fit
from inference.errors import ConfigError, Overloaded
from inference.model_config import ModelConfig
from inference.runner import TorchRunner
from tests.inference.test_adapter_kinds import KINDS, save_adapter

CUDA = torch.device("cuda", 0)


class Device:
    """:ivar held: bytes."""

    def __init__(self, held: int) -> None:
        self.held = held

    def room(self, most: int) -> DeviceRoom:
        return DeviceRoom(most, lambda: self.held, 0, lambda: 0)


def test_the_cache_has_its_part_of_what_the_weights_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1000, 5000))
    assert blocks_that_fit(CUDA, 100, least=6) == 6
    assert blocks_that_fit(CUDA, 7, least=1) == 85
    with pytest.raises(ConfigError, match=r"cuda:0 has room for 6 KV blocks .* needs 7; --max-model-len"):
        blocks_that_fit(CUDA, 100, least=7)


def test_an_adapter_takes_what_is_free_and_no_more() -> None:
    device = Device(70)
    room = device.room(100)
    with room.taking(30):
        device.held += 30
    with pytest.raises(Overloaded, match="no memory for this adapter of 0 MB"), room.taking(1):
        pytest.fail("it was not loaded")
    device.held -= 10
    with room.taking(10):
        pass


def test_memory_in_pieces_that_are_too_small_is_said_as_well() -> None:
    with pytest.raises(Overloaded, match="of 84 MB") as found, Device(0).room(1 << 30).taking(84_000_000):
        raise torch.OutOfMemoryError("CUDA out of memory")
    assert isinstance(found.value.__cause__, torch.OutOfMemoryError)


def test_a_worker_whose_device_is_full_does_not_start() -> None:
    Device(99).room(100).check(CUDA, 640)
    for most in (100, 40):
        with pytest.raises(ConfigError, match="cuda:0 has no room for adapters beside the model, 640 KV blocks"):
            Device(100).room(most).check(CUDA, 640)


def test_what_steps_take_is_left_to_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a device that has 50 bytes free beside the 40 held, where the largest step took 10."""
    held = 40
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (50, 100))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: held)
    room = DeviceRoom.of(CUDA, 10)
    assert room.free == 30
    held = 65
    assert room.free == 5


class Cuda:
    """What torch says of a device of 100 bytes.

    :ivar held: by tensors. :ivar cached: whole pieces that nobody uses. :ivar holes: of pieces in use.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.held, self.cached, self.holes = 40, 5, 0
        self.emptied = 0
        patch.setattr(torch.cuda, "empty_cache", self.empty)
        patch.setattr(torch.cuda, "mem_get_info", lambda device: (self.free, 100))
        patch.setattr(torch.cuda, "memory_allocated", lambda device: self.held)

    @property
    def free(self) -> int:
        return 100 - self.held - self.cached - self.holes

    def empty(self) -> None:
        self.emptied += 1
        self.cached = 0


def test_an_adapter_that_leaves_steps_no_whole_piece_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the 60 bytes that no tensor holds steps are to find 20."""
    device = Cuda(monkeypatch)
    room = DeviceRoom.of(CUDA, 10)
    device.emptied, device.holes = 0, 30
    with room.taking(10):
        device.held += 10
    assert device.emptied == 0
    with pytest.raises(Overloaded, match="no memory for this adapter"), room.taking(10):
        device.held += 10
    assert (device.free, device.emptied) == (10, 1)


def test_an_adapter_may_lie_in_holes_that_others_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are of no use to steps, and what is left to those stays as it was."""
    device = Cuda(monkeypatch)
    room = DeviceRoom.of(CUDA, 10)
    device.holes = 40
    with room.taking(30):
        device.held, device.holes = 70, 10
    assert device.free == 20


def test_what_steps_gave_back_is_counted_as_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache is emptied where too little is free beside it, and not where there is enough."""
    device = Cuda(monkeypatch)
    room = DeviceRoom.of(CUDA, 10)
    device.emptied, device.cached = 0, 20
    with room.taking(20):
        device.held += 20
    assert (device.free, device.emptied) == (20, 0)
    with room.taking(10):
        device.held += 10
    assert (device.free, device.emptied) == (30, 1)


def test_a_runner_asks_before_it_loads(tiny_model_dir: Path, tmp_path: Path) -> None:
    runner = TorchRunner.load(tiny_model_dir, num_blocks=4, num_slots=2, max_model_len=64, threads=1)
    adapter = runner.read_adapter(save_adapter(tiny_model_dir, tmp_path / "a", 1, KINDS["all linears"]))
    runner._room = DeviceRoom(runner.adapter_bytes(adapter), lambda: runner._slots.num_bytes, 0, lambda: 0)
    runner.load_adapter(0, adapter)
    assert runner._slots.order() == {0: 0}
    with pytest.raises(Overloaded):
        runner.load_adapter(1, adapter)
    assert runner._slots.order() == {0: 0}


def test_without_a_number_of_blocks_a_runner_holds_what_fits(
    tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The device's answer is replaced, not what is made of it."""
    context = ModelConfig.load(tiny_model_dir).max_position
    asked: list[tuple[int, int]] = []

    def fits(device: torch.device, size: int, least: int) -> int:
        asked.append((size, least))
        return 3

    monkeypatch.setattr("inference.runner.blocks_that_fit", fits)
    held = TorchRunner.load(tiny_model_dir, num_blocks=None, num_slots=0, max_model_len=None)
    assert (held.num_blocks, held.max_model_len) == (3, 48)
    given = TorchRunner.load(tiny_model_dir, num_blocks=None, num_slots=0, max_model_len=33)
    assert (given.num_blocks, given.max_model_len) == (3, 33)
    sizes = {"num_layers": 2, "num_kv_heads": 3, "head_dim": 8}
    pool = TorchAttention(
        **sizes, num_heads=6, num_blocks=5, block_size=16, device=torch.device("cpu"), dtype=torch.float16
    )
    config = replace(ModelConfig.load(tiny_model_dir), **sizes)
    assert block_bytes(config, 16, torch.float16) * 5 == pool._keys.nbytes + pool._values.nbytes
    assert [least for _, least in asked] == [1, 3]
    with pytest.raises(ConfigError, match=f"exceeds the model's {context}"):
        TorchRunner.load(tiny_model_dir, num_blocks=None, num_slots=0, max_model_len=context + 1)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_cpu_has_a_cache_of_a_fixed_size(
    tiny_model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranks: int
) -> None:
    options = ["--device", "cpu", "--threads", "2", "--tensor-parallel", str(ranks)]
    config = WorkerConfig.parse(
        ["--model", str(tiny_model_dir), "--adapter-store", str(tmp_path), "--grant-key", str(tmp_path), *options]
    )
    assert config.kv_blocks is None
    with ExitStack() as ends:
        runner, _ = load(config, ends)
        assert runner.num_blocks == CPU_BLOCKS
        assert runner.max_model_len == min(CPU_BLOCKS * 16, ModelConfig.load(tiny_model_dir).max_position)
