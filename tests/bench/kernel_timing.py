"""Microseconds on a CUDA device, from caches that do not hold what is read."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from kernel_shapes import Case

if TYPE_CHECKING:
    from kernel_columns import Column

COLD = 3
"""A graph reads this many times the L2's size of adapters before it reads any of them again."""
_COPY, _COPY_ON_CPU = 1 << 30, 1 << 26
_LEAST_CALLS, _CALLS_BYTES = 20, 1 << 30


def copy_bandwidth(device: torch.device) -> float:
    """Bytes a second that a copy within the device's memory reads and writes, together: the median of 20."""
    size = _COPY if device.type == "cuda" else _COPY_ON_CPU
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.zeros_like(source)
    seconds = _seconds if device.type == "cuda" else _seconds_on_cpu
    return 2 * size / statistics.median([seconds(lambda: target.copy_(source)) for _ in range(23)][3:])


def sets(case: Case, itemsize: int, cache: int) -> int:
    """How many sets of adapters to rotate over. :param cache: bytes of the L2."""
    return max(1, math.ceil(COLD * cache / case.adapter_bytes(itemsize)))


def calls(case: Case, itemsize: int, rotated: int) -> int:
    """Of one graph: every set as often; enough of them that starting the graph takes little of the time."""
    least = min(_LEAST_CALLS, math.ceil(_CALLS_BYTES / case.adapter_bytes(itemsize)))
    return rotated * max(1, math.ceil(least / rotated))


def capture(work: Callable[[], None]) -> torch.cuda.CUDAGraph:
    """:param work: has been done before, so that everything is compiled."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph


def graph_microseconds(graph: torch.cuda.CUDAGraph, count: int) -> float:
    """Of one of its ``count`` calls: the median of 3 to 50 replays, about a tenth of a second."""
    once = max(_seconds(graph.replay) for _ in range(2))
    repeats = max(3, min(50, int(0.1 / once)))
    return 1e6 * statistics.median(_seconds(graph.replay) for _ in range(repeats)) / count


def metadata_microseconds(column: Column, slots: Sequence[int]) -> float:
    """Of one step's :meth:`~kernel_columns.Column.begin`, host and device, until the device has it: the median."""
    seconds = []
    for _ in range(33):
        torch.cuda.synchronize()
        started = time.perf_counter()
        column.begin(slots)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
    return 1e6 * statistics.median(seconds[3:])


def _seconds_on_cpu(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _seconds(work: Callable[[], object]) -> float:
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    work()
    stop.record()
    stop.synchronize()
    return float(start.elapsed_time(stop)) / 1000
