"""``tests/bench/linears.py`` where there is no GPU: it checks, times nothing, and says what is wrong."""

from __future__ import annotations

import csv
import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

BENCH = Path(__file__).parent


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    argv = [sys.executable, str(BENCH / "linears.py"), *arguments]
    return subprocess.run(argv, capture_output=True, text=True, env=environment, timeout=300, check=False)


@pytest.mark.slow
def test_on_a_cpu_every_site_is_checked_and_none_is_timed(tmp_path: Path) -> None:
    out = tmp_path / "linears.csv"
    done = command("--device", "cpu", "--out", str(out))
    assert done.returncode == 0, done.stdout + done.stderr
    rows = list(csv.DictReader(out.open()))
    assert [(row["site"], row["tokens"]) for row in rows] == [
        (site, tokens) for site in ("qkv", "o", "gate_up", "down") for tokens in ("1", "17")
    ]
    assert all(0 < float(row["error"]) < 2e-2 for row in rows)
    assert not any(row[name] for row in rows for name in row if "microseconds" in name or "share" in name)
    assert command().returncode == 2
    assert "--tokens: at least 1" in command("--device", "cpu", "--tokens", "0").stderr


@pytest.mark.slow
@pytest.mark.parametrize("defect", ["sum", "row of a batch"])
def test_what_is_wrong_is_found(defect: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    linears = importlib.import_module("linears")
    right = linears.multiplied

    def wrong(x: torch.Tensor, *others: object) -> torch.Tensor:
        found = right(x, *others)
        assert isinstance(found, torch.Tensor)
        return found * 1.1 if defect == "sum" else found * (1 + len(x) / 2**9)

    monkeypatch.setattr(linears, "multiplied", wrong)
    assert linears.main(["--device", "cpu", "--tokens", "1", "3", "--out", str(tmp_path / "l.csv")]) == 1
