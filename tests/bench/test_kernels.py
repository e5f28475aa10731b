"""``make bench-kernels`` where there is no GPU: what it checks, and that it never shows a time it did not take."""

from __future__ import annotations

import csv
import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

BENCH = Path(__file__).parent
CPU = torch.device("cpu")
HERE = ("ours", "ours_fp8", "loop", "gather_bmm", "grouped_mm")
"""The columns that every machine has."""


@pytest.fixture(scope="module")
def bench() -> Iterator[dict[str, ModuleType]]:
    """The command's files, which import each other by their bare names as scripts do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCH))
        yield {name: importlib.import_module(f"kernel_{name}") for name in ("shapes", "columns", "run", "results")}


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    argv = [sys.executable, str(BENCH / "kernels.py"), *arguments]
    return subprocess.run(argv, capture_output=True, text=True, env=environment, timeout=300, check=False)


def case(bench: dict[str, ModuleType], tokens: int = 8, adapters: int = 4, site: str = "qkv") -> Any:
    sites = {found.name: found for found in bench["shapes"].MODELS["tiny"].sites()}
    return bench["shapes"].Case(sites[site], 8, tokens, adapters)


@pytest.mark.slow
def test_on_a_cpu_every_column_is_checked_and_none_is_timed(tmp_path: Path) -> None:
    out = tmp_path / "kernels.csv"
    done = command("--device", "cpu", "--site", "qkv", "down", "--rank", "8", "--out", str(out))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "nothing is timed" in done.stdout
    assert "µs" not in done.stdout
    rows = list(csv.DictReader(out.open()))
    own = [row for row in rows if row["column"] in HERE]
    assert {(row["column"], row["status"]) for row in own} == {(column, "right") for column in HERE}
    assert len(own) == 5 * 2 * 3  # columns, sites, and 1 × 1, 8 × 1 and 8 × 8 tokens and adapters
    assert all(0 <= float(row["error"]) < (0.1 if row["column"] == "ours_fp8" else 2e-2) for row in own)
    assert not any(row[name] for row in rows for name in row if "microseconds" in name or "share" in name)


def test_without_a_gpu_it_says_so_in_one_line() -> None:
    done = command()
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "no CUDA device" in done.stderr


def test_a_rank_that_does_not_fit_is_refused_by_name() -> None:
    done = command("--device", "cpu", "--rank", "12")
    assert done.returncode == 2
    assert "--rank: multiples of 8" in done.stderr


@pytest.mark.slow
def test_transformers_does_not_take_the_script_for_a_package() -> None:
    code = f"import sys; sys.path.insert(0, {str(BENCH)!r}); from transformers.utils import is_kernels_available as f; "
    code += "import kernels; print(f(), kernels.__file__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.split() == ["False", str(BENCH / "kernels.py")], done.stderr


@pytest.mark.parametrize("defect", ["scaling", "neighbour", "nan", "second set", "not added"])
def test_a_wrong_column_is_called_wrong(bench: dict[str, ModuleType], defect: str) -> None:
    loop = bench["columns"].Loop
    made: list[Any] = []

    class Wrong(loop):  # type: ignore[valid-type, misc]
        name = "wrong"

        def apply(self, y: torch.Tensor, x: torch.Tensor) -> None:
            first = not made or made[0] is self
            made.append(self)
            before = y.clone()
            super().apply(y, x)
            if defect == "scaling":
                y.copy_(before + (y - before) / 2)
            elif defect == "neighbour":
                y[0].copy_(y[-1])
            elif defect == "nan":
                y[-1, -1] = float("nan")
            elif defect == "not added":
                y.sub_(before)
            elif not first:
                y.copy_(before)

    wrong, right = bench["run"].Bench(CPU, torch.float32).run(case(bench), [Wrong, loop])
    assert (wrong.status, wrong.microseconds) == ("wrong", None)
    assert right.status == "right"


def test_a_column_that_fails_leaves_the_others_their_turn(bench: dict[str, ModuleType]) -> None:
    class Broken(bench["columns"].Gather):  # type: ignore[misc, name-defined]
        name = "broken"

        def apply(self, y: torch.Tensor, x: torch.Tensor) -> None:
            raise RuntimeError("no kernel image\nand a page of advice")

    broken, gather = bench["run"].Bench(CPU, torch.float32).run(case(bench), [Broken, bench["columns"].Gather])
    assert broken.status == "failed: RuntimeError: no kernel image"
    assert gather.status == "right"


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="Triton's interpreter is for machines without a GPU")
def test_ours_is_right_where_a_batch_is_a_prompts(bench: dict[str, ModuleType]) -> None:
    (found,) = bench["run"].Bench(CPU, torch.bfloat16).run(case(bench, 2048, 8, "o"), [bench["columns"].Ours])
    assert found.status == "right", found


class Replayed:
    """What stands in for a CUDA graph."""

    def __init__(self, work: Any) -> None:
        self.replay = work


class Begun:
    """What stands in for timing :meth:`Column.begin`: afterwards no graph may be timed, its numbers are gone."""

    def __init__(self) -> None:
        self.columns: list[Any] = []

    def metadata(self, column: Any, slots: Any) -> float:
        self.columns.append(column)
        return 80.0

    def graph(self, graph: Any, count: int) -> float:
        assert not self.columns, "what the graph reads has been replaced"
        return 10.0


@pytest.fixture
def timed(bench: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch) -> Any:
    """A bench that times, with stand-ins for what needs a device: its L2 holds 10,000 bytes."""
    run = bench["run"]
    monkeypatch.setattr(run, "capture", Replayed)
    begun = Begun()
    monkeypatch.setattr(run, "graph_microseconds", begun.graph)
    monkeypatch.setattr(run, "metadata_microseconds", begun.metadata)
    monkeypatch.setattr(run.Bench, "_free", lambda self: 1 << 40)
    found = run.Bench(CPU, torch.float32)
    found.timed, found.cache = True, 10_000
    return found


def test_what_is_timed_was_checked_as_it_is_timed(
    bench: dict[str, ModuleType], timed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (found,) = timed.run(case(bench), [bench["columns"].Loop])
    assert (found.status, found.microseconds, found.metadata) == ("right", 10.0, 80.0)
    assert found.total == 10.0 + 80.0 / 8, "metadata serve four sites of two layers"
    assert found.share(1e9) == pytest.approx(case(bench).floor_bytes(4) / 10e-6 / 1e9)
    monkeypatch.setattr(bench["run"], "capture", lambda work: Replayed(lambda: None))
    (lost,) = timed.run(case(bench), [bench["columns"].Loop])
    assert (lost.status, lost.microseconds) == ("wrong", None), "the graph did nothing"


def test_hundreds_of_sets_are_right_in_16_bits_and_one_that_the_graph_leaves_out_is_seen(
    bench: dict[str, ModuleType], timed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many as an L2 of 50 MB takes for small adapters: y, to which all are added, is rounded as often."""
    one = case(bench, 64, 1, "o")
    timed.dtype, timed.cache = torch.bfloat16, 200 * one.adapter_bytes(2)
    made: list[Any] = []

    class Loop(bench["columns"].Loop):  # type: ignore[misc, name-defined]
        left_out: Any = None

        def begin(self, slots: Any) -> None:
            super().begin(slots)
            made.append(self)

        def apply(self, y: torch.Tensor, x: torch.Tensor) -> None:
            if self is not Loop.left_out:
                super().apply(y, x)

    (found,) = timed.run(one, [Loop])
    assert len(made) == 600
    assert found.status == "right", found
    assert found.error < 0.01, "single sets do not round more where there are many"

    def capture(work: Any) -> Replayed:
        Loop.left_out = made[-300]
        return Replayed(work)

    monkeypatch.setattr(bench["run"], "capture", capture)
    assert timed.run(one, [Loop])[0].status == "wrong"


@pytest.mark.parametrize("at", [0, 40, 599])
def test_a_set_that_is_wrong_by_itself_is_found_among_hundreds(
    bench: dict[str, ModuleType], timed: Any, at: int
) -> None:
    """The first, the last and those between them that are compared."""
    one = case(bench, 1, 1, "o")
    timed.cache = 200 * one.adapter_bytes(4)
    made: list[Any] = []

    class Wrong(bench["columns"].Loop):  # type: ignore[misc, name-defined]
        def begin(self, slots: Any) -> None:
            super().begin(slots)
            self.off = len(made) // 40 == at // 40
            made.append(self)

        def apply(self, y: torch.Tensor, x: torch.Tensor) -> None:
            super().apply(y, x * 1.001 if self.off else x)

    assert timed.run(one, [Wrong])[0].status == "wrong"
    assert len(made) == 600


def test_what_does_not_add_is_wrong_where_there_is_one_set(bench: dict[str, ModuleType], timed: Any) -> None:
    class Wrong(bench["columns"].Loop):  # type: ignore[misc, name-defined]
        def apply(self, y: torch.Tensor, x: torch.Tensor) -> None:
            super().apply(y.zero_(), x)

    timed.cache = 1
    assert timed.run(case(bench), [Wrong])[0].status == "wrong"


def test_a_case_that_does_not_fit_is_not_computed(
    bench: dict[str, ModuleType], timed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench["run"].Bench, "_free", lambda self: 3 * case(bench).adapter_bytes(4) * 2)
    monkeypatch.setattr(timed, "cache", 1)
    fits, gather = timed.run(case(bench, 128, 4), [bench["columns"].Loop, bench["columns"].Gather])
    assert (fits.status, gather.status, gather.microseconds) == ("right", "does not fit", None)
    monkeypatch.setattr(timed, "cache", 1 << 40)
    assert timed.run(case(bench), [bench["columns"].Loop])[0].status == "does not fit"


def test_the_floor_is_the_published_one(bench: dict[str, ModuleType]) -> None:
    """Bytes of one adapter of rank 16 at each site of Llama-3-8B, bf16."""
    shapes = bench["shapes"]
    found = {site.name: shapes.Case(site, 16, 64, 1).adapter_bytes(2) for site in shapes.MODELS["8b"].sites()}
    assert found == {"qkv": 589_824, "o": 262_144, "gate_up": 1_179_648, "down": 589_824}
    distinct = shapes.Case(shapes.MODELS["8b"].sites()[0], 16, 64, 64)
    assert distinct.floor_bytes(2) == 64 * 589_824 + 64 * (4096 + 2 * 6144) * 2


def test_the_whole_list_of_cases(bench: dict[str, ModuleType]) -> None:
    found = list(bench["shapes"].cases(["8b", "70b"]))
    assert len(found) == len(set(found)) == 2 * 4 * 5 * 17
    assert {(case.tokens, case.adapters) for case in found} >= {(1, 1), (64, 8), (128, 128), (2048, 2048)}
    assert {case.kind for case in found} == {
        "one token",
        *(f"decode, {mix}" for mix in ("one adapter", "shared adapters", "all distinct")),
        *(f"prefill, {mix}" for mix in ("one adapter", "shared adapters", "all distinct")),
    }
    for one in found:
        slots = one.slots
        assert slots == sorted(slots)
        assert set(slots) == set(range(one.adapters))


def test_a_graph_reads_more_than_the_cache_holds_before_it_reads_anything_twice(bench: dict[str, ModuleType]) -> None:
    timing = importlib.import_module("kernel_timing")
    for one in bench["shapes"].cases(["8b"], ranks=(8, 128), tokens=(1, 64)):
        rotated = timing.sets(one, 2, 60_000_000)
        assert rotated * one.adapter_bytes(2) >= 3 * 60_000_000
        assert timing.calls(one, 2, rotated) % rotated == 0


def test_means_are_geometric_and_of_what_was_measured(bench: dict[str, ModuleType], tmp_path: Path) -> None:
    result, first, second = bench["results"].Result, case(bench, 8, 4), case(bench, 4, 2)
    rows = [result(one, "ours", "right", 7, 0.0, 10.0, 0.0) for one in (first, second)]
    rows += [result(first, "loop", "right", 7, 0.0, 20.0, 0.0), result(second, "loop", "right", 7, 0.0, 5.0, 0.0)]
    rows += [result(first, "gather_bmm", "right", 7, 0.0, 15.0, 0.0)]
    rows += [result(first, "ours_fp8", "right", 4, 0.03, 5.0, 0.0)]
    rows += [result(first, "vllm", "wrong", 7, 0.5), result(second, "vllm", "failed: RuntimeError: ?", 7)]
    results = bench["results"].Results(1e12, rows)
    (line,) = results.means()
    assert [part.strip() for part in line.split("   ") if part.strip()][1:] == [
        "loop 1.00 (slower in 1 of 2)",
        "gather_bmm 1.50 (slower in 1 of 1)",
        "ours_fp8 0.50 (slower in 0 of 1)",
        "the best of the others 0.87 (slower in 1 of 2)",
    ]
    assert "vllm" not in line
    assert "vllm wrong (0.5 off)" in results.line(first, [row for row in rows if row.case == first])
    results.write(tmp_path / "k.csv")
    written = [row for row in csv.DictReader((tmp_path / "k.csv").open()) if row["column"] == "vllm"]
    assert [(row["status"], row["microseconds"], row["copy_share"]) for row in written] == [
        ("wrong", "", ""),
        ("failed: RuntimeError: ?", "", ""),
    ]
