"""Weights are read as safetensors itself reads them, however they lie in the file."""

from __future__ import annotations

import gc
import json
import tracemalloc
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from inference.errors import ConfigError
from inference.models.checkpoint import Checkpoint


def test_tensors_of_every_type_and_of_several_files(tmp_path: Path) -> None:
    torch.manual_seed(0)
    first = {"a": torch.randn(3, 5), "b": torch.randn(7).bfloat16(), "other": torch.arange(3)}
    second = {"c": torch.randn(2, 3).half(), "d": torch.randn(1, 1)}
    save_file(first, tmp_path / "model-00001-of-00002.safetensors")
    save_file(second, tmp_path / "model-00002-of-00002.safetensors")
    checkpoint = Checkpoint(tmp_path)
    for name, expected in {**first, **second}.items():
        if name != "other":
            found = checkpoint.tensor(name, tuple(expected.shape))
            assert found.dtype == expected.dtype
            assert torch.equal(found, expected)
    with pytest.raises(ConfigError, match="a: shape"):
        checkpoint.tensor("a", (5, 3))
    with pytest.raises(ConfigError, match="missing"):
        checkpoint.tensor("e", (1,))


def test_numbers_need_not_be_aligned(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    values = torch.randn(4, 4)
    for padding in range(8):
        entry = {"w": {"dtype": "F32", "shape": [4, 4], "data_offsets": [0, 64]}}
        header = json.dumps(entry).encode() + b" " * padding
        path.write_bytes(len(header).to_bytes(8, "little") + header + values.numpy().tobytes())
        assert torch.equal(load_file(path)["w"], values)
        assert torch.equal(Checkpoint(tmp_path).tensor("w", (4, 4)), values)


@pytest.mark.parametrize("content", [b"", b"1234", (9).to_bytes(8, "little") + b"not JSON!", b"\xff" * 40])
def test_what_is_no_safetensors_file_is_named(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(ConfigError, match=r"model\.safetensors"):
        Checkpoint(tmp_path).tensor("w", (1,))


def test_a_truncated_file_is_named(tmp_path: Path) -> None:
    save_file({"w": torch.ones(100)}, tmp_path / "model.safetensors")
    content = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(content[:-1])
    with pytest.raises(ConfigError, match="ends at byte"):
        Checkpoint(tmp_path).tensor("w", (100,))


def test_reading_again_and_again_keeps_nothing(tmp_path: Path) -> None:
    save_file({f"w{index}": torch.ones(8) for index in range(200)}, tmp_path / "model.safetensors")

    def read() -> int:
        for _ in range(20):
            checkpoint = Checkpoint(tmp_path)
            for index in range(200):
                checkpoint.tensor(f"w{index}", (8,))
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        before = read()
        assert read() - before < 20_000
    finally:
        tracemalloc.stop()
