"""``make kernels-check``: what it compiles, and that it notices what it is there for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

KERNELS = Path(__file__).resolve().parents[2] / "kernels"


def run(code: str) -> subprocess.CompletedProcess[str]:
    """In a process without the interpreter that the tests beside this one use."""
    environment = {**os.environ, "PYTHONPATH": str(KERNELS), "PYTHONWARNINGS": "ignore"}
    environment.pop("TRITON_INTERPRET", None)
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["sm_90", "gfx942"])
def test_every_kernel_compiles_within_its_limits(target: str) -> None:
    done = run(
        f"import sys; sys.argv = ['kernelcheck', '--target', '{target}']; import kernelcheck.__main__ as m; m.main()"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()[1:]
    assert len(lines) >= 170
    assert all(target in line for line in lines)


def test_what_is_beyond_a_limit_is_said() -> None:
    done = run("""
from kernelcheck.__main__ import problem
from kernelcheck.resources import Resources
from kernelcheck.variants import Limits, Variant
variant = Variant(None, "", {}, {}, frozenset(), Limits(64, 1000), wide=True)
for found in ((64, 0, 1000, 0), (64, 8, 0, 0), (65, 0, 0, 0), (1, 0, 1001, 0), (1, 0, 0, 1)):
    print(problem(variant, Resources(*found)))
""")
    assert done.returncode == 0, done.stderr
    fine, *wrong = done.stdout.splitlines()
    assert fine == "None"
    assert [line.split()[-1] for line in wrong] == ["spilled", "64", "1000", "thread"]


@pytest.mark.slow
def test_a_kernel_that_spills_is_found() -> None:
    """Too many sums for the registers there are."""
    done = run("""
from dataclasses import replace
from kernelcheck.resources import compiled
from kernelcheck.variants import variants
expand = next(v for v in variants("sm_80") if v.name.startswith("expand fp32"))
found = compiled(replace(expand, constants={**expand.constants, "BR": 256}), "sm_80")
print(found.spills)
""")
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 0
