"""``.ci/run`` prints pytest's closing line last, and its exit status says whether all is green."""

import os
import subprocess
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[1]


def run(tmp_path: Path, tests: str, *, check: str = "exit 0") -> subprocess.CompletedProcess[str]:
    """The script where everything that it starts is there already, and `make test` is this shell code."""
    programs = {
        "make": f'[ "$1" != check ] || {check}\n[ "$1" = test ] || exit 0\n{tests}',
        "python3": "exit 0",
        "chromium": "exit 0",
    }
    for name, text in programs.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHON": "", "TMPDIR": str(tmp_path)}
    command = ["bash", str(PROJECT / ".ci" / "run")]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30, check=False)


@pytest.mark.parametrize(
    ("closing", "status"),
    [
        ("5030 passed in 8.51s", 0),
        ("6 failed, 5024 passed, 363 warnings, 1 error in 1018.85s (0:16:58)", 2),
        ("2 warnings, 1 error in 7.02s", 2),
        ("1 xpassed in 0.10s", 0),
        ("no tests ran in 0.01s", 2),
        ("===== 2 failed in 0.31s =====", 2),
    ],
)
def test_the_closing_line_is_the_last_whatever_it_says(tmp_path: Path, closing: str, status: int) -> None:
    tests = f'printf "%s\\n" "FAILED tests/test_it.py" "{closing}"\n'
    tests += f'[ {status} = 0 ] || {{ echo "make: *** [Makefile:36: test] Error {status}" >&2; exit 2; }}'
    done = run(tmp_path, tests)
    assert done.stdout.splitlines()[-1] == closing, done.stdout + done.stderr
    assert done.returncode == (1 if status else 0)


def some_fail(names: list[str], closing: str, again: str) -> str:
    """Shell code: these fail beside others, and alone it ends like this."""
    failures = "".join(f'echo "FAILED {name} - assert 1 == 2"; ' for name in names)
    alone = f'[[ "$*" != *--last-failed* ]] || {{ {again}; }}\n'
    return f'{alone}{failures}echo "{closing}"; exit 1'


TWO = ["tests/a/test_it.py::test_one", "tests/b/test_it.py::test_two[with spaces - and more]"]
CLOSING = "2 failed, 5030 passed, 6 skipped, 3 warnings, 1 error in 1018.85s (0:16:58)"
GREEN = 'echo "2 passed in 3.10s"; exit 0'


def test_what_fails_beside_others_is_tried_alone_and_named(tmp_path: Path) -> None:
    done = run(tmp_path, some_fail(TWO, CLOSING, GREEN))
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stdout + done.stderr
    assert lines[-5:-3] == [f"Failed beside others, passed alone: {name}" for name in (TWO[0], TWO[1].split(" - ")[0])]
    assert lines[-3:] == [
        f"The whole run: {CLOSING}",
        "Those again: 2 passed in 3.10s",
        "5032 passed, 6 skipped, 3 warnings in 1018.85s (0:16:58)",
    ]


@pytest.mark.parametrize(
    ("names", "again", "check"),
    [
        (TWO, 'echo "1 failed, 1 passed in 3.10s"; exit 1', "exit 0"),
        ([f"tests/a/test_it.py::test_{number}" for number in range(6)], GREEN, "exit 0"),
        (["tests/a/test_it.py"], GREEN, "exit 0"),
        (TWO, GREEN, "exit 1"),
    ],
    ids=["fails twice", "six", "not collected", "make check fails"],
)
def test_it_stays_a_failure(tmp_path: Path, names: list[str], again: str, check: str) -> None:
    assert run(tmp_path, some_fail(names, CLOSING, again), check=check).returncode == 1
