"""Compiled loops on a team of threads: every item is taken once, whoever takes it, and the caller waits for all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cpujit import Kernel, at, float32s, int64s, next_item, run, threads


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
    most, rounds, deadline = 0, 0, time.monotonic() + 60
    # on a busy machine nobody may get the chance to follow for a while
    while rounds < 300 or (most < 2 and time.monotonic() < deadline):
        rounds += 1
        for workers in (1, 2, 4):
            work = np.zeros(1, np.int64)
            given = np.array([0, 20_000, work.ctypes.data], np.int64)
            run(COUNT.address, given.ctypes.data, workers)
            assert 1 <= given[0] <= (6 if workers > 1 else 1)
            assert work[0] == given[0] * 20_000, "somebody had not finished"
            most = max(most, int(given[0]))
    assert most > 1, "nobody ever followed"


def _exit_status(child: int) -> int | None:
    """``None``: it hung, and is ended here."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def test_a_child_process_made_by_fork_has_a_team_of_its_own() -> None:
    squares(10, 2)
    child = os.fork()
    if child == 0:
        _, _, taken = squares(1000, 2)
        os._exit(0 if (taken == 1).all() else 1)
    assert _exit_status(child) == 0


def test_a_child_made_by_fork_in_the_middle_of_a_call_does_not_wait_for_the_parents_threads() -> None:
    work = np.zeros(1, np.int64)
    given = np.array([0, 30_000_000, work.ctypes.data], np.int64)
    caller = threading.Thread(target=run, args=(COUNT.address, given.ctypes.data, 2))
    caller.start()
    deadline = time.monotonic() + 60
    while given[0] < 1 and time.monotonic() < deadline:
        time.sleep(0.001)
    child = os.fork()
    if child == 0:
        leads = threads._team()._leading.acquire(blocking=False)
        threads._team()._leading.release()
        _, _, taken = squares(1000, 2)
        os._exit(0 if leads and (taken == 1).all() else 1)
    status = _exit_status(child)
    caller.join()
    assert status == 0


DOUBLE = """\
from cpujit import Kernel, float32s, int64s
def body(arguments):
    given = int64s(arguments, (2,))
    float32s(given[1], (1,))[0] *= 2
KERNEL = Kernel(body)
"""
USE = """\
import double, numpy as np, cpujit, sys
number = np.ones(1, np.float32)
given = np.array([0, number.ctypes.data], np.int64)
cpujit.run(double.KERNEL.address, given.ctypes.data, 1)
sys.exit(int(number[0]))
"""
NO_PLACES = """\
import numba.core.caching as caching
caching.CacheImpl._locator_classes = []  # as root, every directory can be written
"""
NO_SPACE = """\
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
"""
NOBODY = """\
import os
os.environ.pop("HOME", None)
os.environ.pop("XDG_CACHE_HOME", None)
os.access = lambda *_: False
import pwd
def getpwuid(uid):
    raise KeyError(uid)
pwd.getpwuid = getpwuid
"""


def _program(program: str, sources: Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": f"{sources}:{os.environ.get('PYTHONPATH', '')}"}
    command = [sys.executable, "-B", "-c", program]
    return subprocess.run(command, env=env, check=False, capture_output=True, text=True)


@pytest.mark.parametrize("before", [NO_PLACES, NO_SPACE, NOBODY], ids=["no place", "no space", "no home"])
def test_no_cache_is_no_reason_to_fail(tmp_path: Path, before: str) -> None:
    (tmp_path / "double.py").write_text(DOUBLE)
    ended = _program(before + USE, tmp_path)
    assert ended.returncode == 2, ended.stderr
    assert not list(tmp_path.rglob("*.nbc"))


def test_a_body_that_does_not_compile_says_so(tmp_path: Path) -> None:
    (tmp_path / "double.py").write_text(DOUBLE.replace("*= 2", "= 'two'"))
    ended = _program(USE, tmp_path)
    assert ended.returncode == 1
    assert "TypingError" in ended.stderr


def test_an_error_of_the_compilers_own_is_not_taken_for_a_missing_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts: list[dict[str, Any]] = []

    def compiler(_: Any, **options: Any) -> Any:
        attempts.append(options)
        raise RuntimeError("LLVM IR parsing error")

    monkeypatch.setattr("cpujit.kernel.cfunc", compiler)
    with pytest.raises(RuntimeError, match="parsing error"):
        _ = Kernel(_square).address
    assert len(attempts) == 1


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
