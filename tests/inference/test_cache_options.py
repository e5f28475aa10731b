"""The worker's options for dividing the cache."""

from __future__ import annotations

from pathlib import Path

import pytest

from inference.config import BLOCK_SIZE, CPU_BLOCKS, WorkerConfig
from inference.errors import ConfigError


def parse(folder: Path, *options: str) -> WorkerConfig:
    (folder / "config.json").write_text("{}")
    return WorkerConfig.parse(
        ["--model", str(folder), "--adapter-store", str(folder), "--grant-key", str(folder / "key"), *options]
    )


def test_without_options_a_quarter_is_safe_if_the_longest_request_leaves_it(tmp_path: Path) -> None:
    config = parse(tmp_path, "--kv-blocks", "1000")
    assert config.shares(2048).reserved == 250
    assert config.shares(900 * BLOCK_SIZE).reserved == 100
    assert config.shares(1000 * BLOCK_SIZE + 1).reserved == 0
    assert config.shares(2048).cap == 1000


def test_the_default_cache_has_room_for_a_context_of_8192_tokens_and_floors(tmp_path: Path) -> None:
    assert parse(tmp_path, "--kv-blocks", str(CPU_BLOCKS)).shares(8192).reserved == 128


def test_options_are_taken_by_the_letter(tmp_path: Path) -> None:
    options = ("--kv-blocks", "100", "--cache-reserve", "0.5", "--cache-cap", "0.3", "--cache-idle-seconds", "5")
    shares = parse(tmp_path, *options).shares(100)
    assert (shares.reserved, shares.cap, shares.idle_seconds) == (50, 30, 5.0)
    assert parse(tmp_path, "--kv-blocks", "100", "--cache-reserve", "0").shares(100).reserved == 0


def test_a_reserve_that_leaves_no_room_for_a_request_is_refused_with_the_numbers(tmp_path: Path) -> None:
    config = parse(tmp_path, "--kv-blocks", "100", "--cache-reserve", "0.5")
    assert config.shares(50 * BLOCK_SIZE + 1).reserved == 50
    with pytest.raises(ConfigError, match=r"--cache-reserve 0\.5 keeps 50 of 100 blocks.*all but 49"):
        config.shares(50 * BLOCK_SIZE + 2)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--cache-reserve", "1"),
        ("--cache-reserve", "-0.1"),
        ("--cache-reserve", "nan"),
        ("--cache-cap", "0"),
        ("--cache-cap", "1.1"),
        ("--cache-cap", "nan"),
        ("--cache-idle-seconds", "0"),
        ("--cache-idle-seconds", "inf"),
        ("--cache-idle-seconds", "nan"),
    ],
)
def test_values_out_of_range_are_named(tmp_path: Path, option: str, value: str) -> None:
    with pytest.raises(ConfigError, match=option):
        parse(tmp_path, f"{option}={value}")
