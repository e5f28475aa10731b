"""Compiled loops on torch's threads: every item is taken once, whoever takes it, and the caller waits for all."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cpujit import Kernel, float32s, int64s, next_item, run, threads


def _square(arguments: Any) -> None:
    given = int64s(arguments, (4,))
    numbers, taken = float32s(given[1], (given[3],)), int64s(given[2], (given[3],))
    while True:
        item = next_item(arguments)
        if item >= given[3]:
            break
        numbers[item] = numbers[item] * numbers[item]
        taken[item] += 1


SQUARE = Kernel(_square)


def squares(count: int, workers: int) -> tuple[torch.Tensor, torch.Tensor, np.ndarray[Any, Any]]:
    numbers, taken = torch.arange(count, dtype=torch.float32), np.zeros(count, np.int64)
    given = np.array([0, numbers.data_ptr(), taken.ctypes.data, count], np.int64)
    before = numbers.clone()
    run(SQUARE.address, given.ctypes.data, workers)
    return before, numbers, taken


@pytest.mark.parametrize("workers", [1, 2, 5])
@pytest.mark.parametrize("count", [0, 1, 3, 4000])
def test_every_item_is_taken_once_whatever_the_number_of_threads(count: int, workers: int) -> None:
    for _ in range(20):
        before, numbers, taken = squares(count, workers)
        assert torch.equal(numbers, before * before)
        assert (taken == 1).all()


def test_without_the_runtime_the_caller_does_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_team", lambda: None)
    before, numbers, taken = squares(100, 2)
    assert torch.equal(numbers, before * before)
    assert (taken == 1).all()


@pytest.mark.skipif(sys.platform != "linux", reason="torch's own OpenMP is looked for on Linux alone")
def test_the_team_is_torchs() -> None:
    assert threads._team() is not None
    assert threads._runtimes()[0].startswith(str(Path(torch.__file__).parent))


def test_no_place_for_a_cache_is_no_reason_to_fail(tmp_path: Path) -> None:
    source = tmp_path / "kernels"
    source.mkdir()
    (source / "double.py").write_text(
        "from cpujit import Kernel, float32s, int64s\n"
        "def body(arguments):\n"
        "    given = int64s(arguments, (2,))\n"
        "    float32s(given[1], (1,))[0] *= 2\n"
        "KERNEL = Kernel(body)\n"
    )
    program = (
        "import numba.core.caching as caching\n"
        "caching.CacheImpl._locator_classes = []\n"  # as root, every directory can be written
        "import double, numpy as np, cpujit, sys\n"
        "number = np.ones(1, np.float32)\n"
        "given = np.array([0, number.ctypes.data], np.int64)\n"
        "cpujit.run(double.KERNEL.address, given.ctypes.data, 1)\n"
        "sys.exit(int(number[0]))"
    )
    env = {**os.environ, "PYTHONPATH": f"{source}:{os.environ.get('PYTHONPATH', '')}"}
    assert subprocess.run([sys.executable, "-c", program], env=env, check=False).returncode == 2


def test_a_constant_from_another_file_is_no_more_than_its_present_value(tmp_path: Path) -> None:
    (tmp_path / "body.py").write_text(
        "from cpujit import Kernel, float32s, int64s\n"
        "from factor import FACTOR\n"
        "def body(arguments):\n"
        "    given = int64s(arguments, (2,))\n"
        "    float32s(given[1], (1,))[0] *= FACTOR\n"
        "KERNEL = Kernel(body)\n"
    )
    program = (
        "import body, numpy as np, cpujit, sys\n"
        "number = np.ones(1, np.float32)\n"
        "given = np.array([0, number.ctypes.data], np.int64)\n"
        "cpujit.run(body.KERNEL.address, given.ctypes.data, 1)\n"
        "sys.exit(int(number[0]))"
    )
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}
    for factor in (3, 4, 3):
        (tmp_path / "factor.py").write_text(f"FACTOR = {factor}\n")
        assert subprocess.run([sys.executable, "-B", "-c", program], env=env, check=False).returncode == factor
    assert len(list(tmp_path.glob("__pycache__/cpujit-*/*/*.nbi"))) == 2
