"""Compiled loops on torch's threads: every item is taken once, whoever takes it, and the caller waits for all."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cpujit import Kernel, at, float32s, int64s, next_item, run


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


def test_followers_wake_up_after_a_pause() -> None:
    for pause in (0.0, 0.005, 0.05):
        time.sleep(pause)
        before, numbers, taken = squares(100, 3)
        assert torch.equal(numbers, before * before)
        assert (taken == 1).all()


def test_several_callers_at_once_each_get_their_own_work_done() -> None:
    wrong: list[int] = []

    def call(count: int) -> None:
        for _ in range(200):
            before, numbers, taken = squares(count, 3)
            if not (torch.equal(numbers, before * before) and (taken == 1).all()):
                wrong.append(count)

    callers = [threading.Thread(target=call, args=(count,)) for count in (1, 50, 3000)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not wrong


def _count(arguments: Any) -> None:
    """How many threads came: each adds 1, then works for a while."""
    given = int64s(arguments, (3,))
    next_item(arguments)
    for _ in range(given[1]):
        next_item(at(given[2], np.int64))


COUNT = Kernel(_count)


def test_all_that_came_have_finished_and_one_thread_is_the_caller() -> None:
    squares(10, 6)  # the team now has five followers
    most = 0
    for _ in range(300):
        for workers in (1, 2, 4):
            work = np.zeros(1, np.int64)
            given = np.array([0, 20_000, work.ctypes.data], np.int64)
            run(COUNT.address, given.ctypes.data, workers)
            assert 1 <= given[0] <= (6 if workers > 1 else 1)
            assert work[0] == given[0] * 20_000, "somebody had not finished"
            most = max(most, int(given[0]))
    assert most > 1, "nobody ever followed"


def test_a_child_process_made_by_fork_works_alone() -> None:
    squares(10, 2)
    child = os.fork()
    if child == 0:
        _, _, taken = squares(1000, 2)
        os._exit(0 if (taken == 1).all() else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_no_place_for_a_cache_is_no_reason_to_fail(tmp_path: Path) -> None:
    source = tmp_path / "kernels"
    source.mkdir()
    (source / "double.py").write_text(
        "from cpujit import Kernel, at, float32s, int64s\n"
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
        "from cpujit import Kernel, at, float32s, int64s\n"
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
