"""Both processes read the same settings."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from inference.config import BLOCK_SIZE, WorkerConfig
from inference.errors import ConfigError


def parse(folder: Path, *options: str) -> WorkerConfig:
    (folder / "config.json").write_text("{}")
    return WorkerConfig.parse(
        ["--model", str(folder), "--adapter-store", str(folder), "--grant-key", str(folder / "key"), *options]
    )


def test_the_core_reads_what_the_front_was_told(tmp_path: Path) -> None:
    options = ["--slots", "3", "--adapter-root", str(tmp_path), "--adapter-root", "/tmp", "--json", "--threads", "1"]
    options += ["--cache-reserve", "0.125", "--dtype", "bfloat16", "--kv-blocks", "640"]
    config = parse(tmp_path, *options).resolved(512)
    copy = WorkerConfig.from_json(config.to_json())
    assert copy == config
    assert copy.adapter_root == (tmp_path.resolve(), Path("/tmp").resolve())
    assert copy.limits() == config.limits()
    assert copy.limits().max_model_len == 512


def test_every_field_is_an_option_with_help(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        WorkerConfig.parse(["--help"])
    said = capsys.readouterr().out
    for each in fields(WorkerConfig):
        assert f"--{each.name.replace('_', '-')}" in said
        assert each.metadata["help"]
    said = " ".join(said.split())
    assert said.count("(default: ") + said.count("(required)") == len(fields(WorkerConfig))


@pytest.mark.parametrize("device", ["foo", "mps", "cuda:", "cpu ", "cuda:x"])
def test_devices_that_no_worker_has_are_named(tmp_path: Path, device: str) -> None:
    with pytest.raises(ConfigError, match=rf"--device must be .*, not '{device}'"):
        parse(tmp_path, "--device", device)


def test_the_context_is_bounded_by_model_and_cache(tmp_path: Path) -> None:
    assert parse(tmp_path, "--kv-blocks", "4").resolved(512).max_model_len == 4 * BLOCK_SIZE
    assert parse(tmp_path, "--kv-blocks", "640").resolved(512).max_model_len == 512
    open_ended = parse(tmp_path).resolved(512)
    assert (open_ended.kv_blocks, open_ended.max_model_len) == (None, None), "the device decides"
    with pytest.raises(ConfigError, match="the model's context of 512"):
        parse(tmp_path, "--max-model-len", "513").resolved(512)
    with pytest.raises(ConfigError, match="the KV cache of 64 tokens"):
        parse(tmp_path, "--max-model-len", "65", "--kv-blocks", "4").resolved(512)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--slots", "-1"),
        ("--kv-blocks", "0"),
        ("--threads", "0"),
        ("--max-running", "0"),
        ("--max-model-len", "1"),
        ("--max-body-bytes", "0"),
        ("--port", "-1"),
        ("--port", "65536"),
        ("--drain-seconds", "-1"),
        ("--drain-seconds", "nan"),
        ("--health-deadline", "0"),
        ("--health-deadline", "inf"),
    ],
)
def test_numbers_out_of_range_are_named(tmp_path: Path, option: str, value: str) -> None:
    with pytest.raises(ConfigError, match=option):
        parse(tmp_path, f"{option}={value}")
