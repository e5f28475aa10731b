"""Checks every column at every case, then times those that were right."""

from __future__ import annotations

import argparse
import platform
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from kernel_adapters import TOLERANCE, Adapters, error
from kernel_columns import Absent, Column, Gather, Grouped, Loop, Ours, OursFp8
from kernel_foreign import FOREIGN
from kernel_results import Result, Results
from kernel_shapes import MODELS, RANKS, TOKENS, Case, cases
from kernel_timing import calls, capture, copy_bandwidth, graph_microseconds, metadata_microseconds, sets
from torch import Tensor

COLUMNS: tuple[type[Column], ...] = (Ours, OursFp8, Loop, Gather, Grouped, *FOREIGN)
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
SETS_ON_CPU = 2
CHECKED = 16
"""Sets that are compared with float64, spread over all that are rotated over, which may be a thousand."""


class Bench:
    """:param device: only CUDA is timed; a CPU checks, with Triton's interpreter."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self.device, self.dtype = device, dtype
        self.timed = device.type == "cuda"
        self.cache = torch.cuda.get_device_properties(device).L2_cache_size if self.timed else 0

    def run(self, case: Case, columns: Sequence[type[Column]]) -> list[Result]:
        rotated = sets(case, self.dtype.itemsize, self.cache) if self.timed else SETS_ON_CPU
        if self.timed and rotated * case.adapter_bytes(self.dtype.itemsize) > self._free() / 3:
            return [self._result(kind, case, "does not fit") for kind in columns]
        adapters = Adapters.random(case, rotated * case.adapters, self.device, self.dtype)
        parts = [adapters.part(index * case.adapters, case.adapters) for index in range(rotated)]
        generator = torch.Generator(device=self.device).manual_seed(case.tokens)
        x = torch.randn(case.tokens, case.site.inputs, generator=generator, device=self.device, dtype=self.dtype)
        return [self._column(kind, case, parts, x) for kind in columns]

    def _column(self, kind: type[Column], case: Case, parts: Sequence[Adapters], x: Tensor) -> Result:
        if self.timed and kind.scratch_bytes(case, self.dtype.itemsize) > self._free() / 3:
            return self._result(kind, case, "does not fit")
        columns: list[Column] = []
        try:
            for part in parts:
                columns.append(kind(part))
                columns[-1].begin(case.slots)
            return self._checked(columns, case, x)
        except torch.OutOfMemoryError:
            return self._result(kind, case, "does not fit")
        except Exception as problem:  # a column of another's may fail in any way; the others still have their turn
            shown = f"{type(problem).__name__}: {[*str(problem).strip().splitlines(), ''][0][:120]}"
            self._check_device(f"{kind.name} at {case}: {shown}")
            return self._result(kind, case, f"failed: {shown}")
        finally:
            for column in columns:
                column.end()

    def _checked(self, columns: Sequence[Column], case: Case, x: Tensor) -> Result:
        """Right at single sets and where they add up; then the graph that is timed, which does what its calls do."""
        kind = type(columns[0])
        tolerance = kind.tolerance or TOLERANCE[self.dtype]
        y = torch.zeros(case.tokens, case.site.width, device=self.device, dtype=self.dtype)
        alone, together = self._errors(columns, case, x, y)
        if not alone <= tolerance:
            return self._result(kind, case, "wrong", alone)
        if not together <= 2 * tolerance:  # y was rounded some times more
            return self._result(kind, case, "wrong", together)
        if not self.timed:
            return self._result(kind, case, "right", alone)
        count = calls(case, self.dtype.itemsize, len(columns))

        def work() -> None:
            for index in range(count):
                columns[index % len(columns)].apply(y, x)

        y.zero_()
        work()
        expected = y.double()
        graph = capture(work)
        y.zero_()
        graph.replay()
        # Not with float64: a thousand sums rounded to 16 bits are off by more than a set that is missing would make
        # them. The same calls round alike; kernels that add in no fixed order differ a little.
        replayed = error(y, expected)
        if not replayed <= TOLERANCE[self.dtype]:
            return self._result(kind, case, "wrong", replayed)
        microseconds = graph_microseconds(graph, count)
        # Afterwards: a column's new numbers may lie elsewhere, and what the graph reads is no longer its own.
        return self._result(kind, case, "right", alone, microseconds, metadata_microseconds(columns[0], case.slots))

    def _errors(self, columns: Sequence[Column], case: Case, x: Tensor, y: Tensor) -> tuple[float, float]:
        """Of up to ``CHECKED`` sets: the largest of one by itself, and of what all have added to ``y``."""
        alone, total = [], torch.zeros_like(y, dtype=torch.float64)
        single = torch.empty_like(y)
        last, count = len(columns) - 1, min(max(2, len(columns)), CHECKED)  # one set alone: twice
        for index in (last * step // (count - 1) for step in range(count)):
            delta = columns[index].adapters.delta(x, case.slots)
            columns[index].apply(single.zero_(), x)
            alone.append(error(single, delta))
            columns[index].apply(y, x)
            total += delta
        return max(alone), error(y, total)

    def _result(self, kind: type[Column], case: Case, status: str, *numbers: float) -> Result:
        """:param numbers: error, microseconds and metadata, as far as they are known."""
        moved = case.floor_bytes(self.dtype.itemsize, kind.held_bytes)
        return Result(case, kind.name, status, moved, *numbers)

    def _check_device(self, problem: str) -> None:
        try:
            if self.timed:
                torch.cuda.synchronize()
        except RuntimeError as error:
            raise SystemExit(f"{problem}\nThe device can do nothing more: run again without it (--column)") from error

    def _free(self) -> int:
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info(self.device)[0]


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="kernels.py", description="Check, then time the kernels for many adapters.")
    parser.add_argument(
        "--device", choices=["cuda", "cpu"], default="cuda", help="cpu: checks small shapes, in Triton's interpreter"
    )
    parser.add_argument("--dtype", choices=sorted(DTYPES), default="bfloat16")
    parser.add_argument("--quick", action="store_true", help="rank 16, T of 1, 64 and 2,048, 8B alone")
    parser.add_argument("--model", nargs="+", choices=sorted(MODELS))
    parser.add_argument("--site", nargs="+", choices=["qkv", "o", "gate_up", "down"], default=[])
    parser.add_argument("--rank", nargs="+", type=int)
    parser.add_argument("--tokens", nargs="+", type=int)
    parser.add_argument("--column", nargs="+", choices=[column.name for column in COLUMNS])
    parser.add_argument("--out", type=Path, default=Path("var/kernels.csv"))
    options = parser.parse_args(argv)
    small = options.device == "cpu"
    options.model = options.model or (["tiny"] if small else ["8b"] if options.quick else ["8b", "70b"])
    options.rank = options.rank or ((8, 16) if small else (16,) if options.quick else RANKS)
    options.tokens = options.tokens or ((1, 8) if small else (1, 64, 2048) if options.quick else TOKENS)
    for name in ("rank", "tokens"):
        if min(getattr(options, name)) < 1:
            parser.error(f"--{name}: at least 1, not {min(getattr(options, name))}")
    if any(rank % 8 for rank in options.rank):
        parser.error("--rank: multiples of 8, which torch's grouped product takes")
    return options


def present(wanted: Sequence[str] | None) -> tuple[list[type[Column]], dict[str, str]]:
    """The columns that this machine has, and why not the others."""
    case = Case(MODELS["tiny"].sites()[1], 8, 1, 1)
    adapters = Adapters.random(case, 1, torch.device("cpu"), torch.bfloat16)
    found, absent = [], {}
    for kind in COLUMNS:
        if wanted and kind.name not in wanted:
            continue
        try:
            kind(adapters)
            found.append(kind)
        except Absent as reason:
            absent[kind.name] = str(reason).splitlines()[0]
    return found, absent


def main(argv: Sequence[str] | None = None) -> int:
    """0; 1: our kernels were wrong somewhere; 2: there is nothing to run on."""
    options = arguments(argv)
    device = torch.device(options.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        print("kernels.py: torch sees no CUDA device; --device cpu checks and times nothing", file=sys.stderr)
        return 2
    dtype = DTYPES[options.dtype]
    columns, absent = present(options.column)
    results = Results(copy_bandwidth(device) if device.type == "cuda" else None)
    print(heading(device, dtype, results.bandwidth))
    for name, reason in absent.items():
        print(f"{name}: not on this machine ({reason})")
    bench = Bench(device, dtype)
    for case in cases(options.model, options.rank, options.tokens, options.site):
        found = bench.run(case, columns)
        results.rows += found
        print(results.line(case, found), flush=True)
        results.write(options.out)  # a run of hours that is stopped has its rows
    for text in results.means():
        print(text)
    print(f"written to {options.out}")
    own = [kind.name for kind in columns if issubclass(kind, Ours)]
    failed = [row for name in own for row in results.failures(name)]
    print(f"ours: {len(failed)} of {sum(row.column in own for row in results.rows)} not right")
    return 1 if failed else 0


def heading(device: torch.device, dtype: torch.dtype, bandwidth: float | None) -> str:
    versions = f"torch {torch.__version__}, {dtype}"
    if bandwidth is None:
        return f"{platform.machine()} CPU, {versions}: the columns are checked against float64, and nothing is timed"
    name = torch.cuda.get_device_name(device)
    return (
        f"{name}, {versions}: copies within its memory at {bandwidth / 1e9:.0f} GB/s; microseconds of a call from a "
        "CUDA graph, adapters not in the L2; the share is of the copy's bandwidth, of the bytes that have to move"
    )
