"""Tests marked ``alone`` are alone, also when one of three processes has finished before the others."""

import json
import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
TEST = """
import json, os, time
from pathlib import Path
import pytest

@pytest.mark.{mark}
@pytest.mark.parametrize("nth", range({times}))
def test_it(nth):
    began = time.monotonic()
    time.sleep({seconds})
    with Path("times").open("a") as times:
        times.write(json.dumps(["{mark}", began, time.monotonic()]) + "\\n")
"""


def test_nothing_runs_beside_one_that_is_alone(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = alone\n    together\n")
    # The first process is done at once. The second is in a long test when the third comes to one that is alone.
    for name, mark, times, seconds in (
        ("test_a", "together", 2, 0.0),
        ("test_b", "together", 3, 0.5),
        ("test_c", "alone", 4, 0.2),
    ):
        (tmp_path / f"{name}.py").write_text(TEST.format(mark=mark, times=times, seconds=seconds))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "xdist", "-p", "tests.turns", "-p", "no:cacheprovider"]
    command += ["-n", "3", "--dist", "loadfile", "--no-loadscope-reorder"]
    folder = tmp_path / "tmp"
    folder.mkdir()
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(PROJECT), "TMPDIR": str(folder)}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert "9 passed" in done.stdout, done.stdout + done.stderr
    runs = [json.loads(line) for line in (tmp_path / "times").read_text().splitlines()]
    alone = [run for run in runs if run[0] == "alone"]
    assert len(alone) == 4
    for mine in alone:
        beside = [other for other in runs if other is not mine and other[1] < mine[2] and mine[1] < other[2]]
        assert beside == []
    assert list(folder.glob("loraplex-turns-*")) == [], "the locks are gone"
