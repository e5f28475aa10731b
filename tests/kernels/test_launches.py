"""Every launch of a step compiles, whatever its sizes, and none of them makes a server wait for a compiler again."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("compile_launches.py")


@pytest.mark.slow
def test_a_step_of_any_size_compiles_and_only_the_first_of_them() -> None:
    command = [sys.executable, "-W", "ignore", str(SCRIPT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    first, *others = json.loads(done.stdout)
    assert others == [first] * len(others)
    # with and without fp8; with and without a residual; decode and prefill, each without a window, with 1 and with 100
    adapters = {"shrink": 2, "expand": 2, "amplify": 2, "embed": 1}
    attention = {"attend": 6, "combine": 1, "store": 1}
    # three tiles for a part of K, and for all of it with and without a residual
    assert first == adapters | attention | {"multiply": 9, "add_parts": 2}
