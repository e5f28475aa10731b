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
    environment = {
        **os.environ,
        "PYTHONPATH": f"{KERNELS}{os.pathsep}{Path(__file__).parent}",
        "PYTHONWARNINGS": "ignore",
    }
    environment.pop("TRITON_INTERPRET", None)
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)


def compiled(target: str, prepare: str = "") -> list[list[str]]:
    """The words of each line of ``make kernels-check``, whose first is the kernel; all within their limits.

    :param prepare: what else to do with ``m``, its module, before it runs.
    """
    done = run(f"""
import sys
import kernelcheck.__main__ as m
sys.argv = ["kernelcheck", "--target", "{target}"]
{prepare}
m.main()
""")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line.split() for line in done.stdout.splitlines()[1:]]
    assert all(target in line for line in lines)
    return lines


@pytest.mark.slow
def test_every_kernel_compiles_within_its_limits() -> None:
    assert len(compiled("sm_90")) >= 170


@pytest.mark.slow
def test_a_sample_compiles_within_its_limits_for_another_target() -> None:
    """``make kernels-check`` compiles the whole for this one too, which takes several times as long."""
    prepare = """
from kernelcheck_sample import sample
whole = m.variants
m.variants = lambda target: sample(whole(target))
"""
    lines = compiled("gfx942", prepare)
    assert len(lines) >= 45
    assert len({line[0] for line in lines}) >= 9


def test_the_sample_holds_every_kernel_type_and_shape() -> None:
    done = run("""
from kernelcheck.variants import variants
from kernelcheck_sample import ONE_OF, sample
whole = list(variants("gfx942"))
taken = sample(whole)
missing = {variant.kernel.__name__ for variant in whole} - {variant.kernel.__name__ for variant in taken}
words = [{word for variant in some for word in variant.label.replace(",", "").split()} for some in (whole, taken)]
print(missing or "all", words[0] - words[1] or "all", len(taken) < len(whole) / ONE_OF + 9)
""")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "all all True\n"


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
