"""``.ci/run`` prints pytest's closing line last, and its exit status says whether all is green."""

import os
import subprocess
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[1]


def run(tmp_path: Path, closing: str, status: int) -> subprocess.CompletedProcess[str]:
    """The script where everything that it starts is there already, and `make test` ends like this."""
    programs = {
        "make": f'[ "$1" = test ] || exit 0\nprintf "%s\\n" "FAILED tests/test_it.py" "{closing}"\n'
        f'[ {status} = 0 ] || {{ echo "make: *** [Makefile:36: test] Error {status}" >&2; exit 2; }}',
        "python3": "exit 0",
        "chromium": "exit 0",
    }
    for name, text in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
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
    done = run(tmp_path, closing, status)
    assert done.stdout.splitlines()[-1] == closing, done.stdout + done.stderr
    assert done.returncode == (1 if status else 0)
