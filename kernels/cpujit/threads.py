"""Calls compiled code once on each thread of torch's own OpenMP team."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch

_BODY = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def run(body: int, arguments: int, threads: int) -> None:
    """Call ``body(arguments)`` on ``threads`` threads at once and wait for all of them; the GIL is free meanwhile.

    The threads are those that torch uses for its operations in the calling thread, still awake from the last one:
    1–4 µs to start and join two, where waking sleeping ones costs 50. Elsewhere than on Linux, and where torch is
    built on another OpenMP, the caller runs alone: the body divides its work by taking items (see
    :func:`cpujit.memory.next_item`), so one thread does all of it.

    :param body: address of a compiled ``void body(void *)`` (:attr:`cpujit.kernel.Kernel.address`).
    :param arguments: address of what it gets.
    """
    team = _team()
    if threads > 1 and team is not None:
        team(body, arguments, threads, 0)
    else:
        _alone(body)(arguments)


@cache
def _alone(body: int) -> Callable[[int], None]:
    return _BODY(body)


@cache
def _team() -> Callable[[int, int, int, int], None] | None:
    """``GOMP_parallel``: what compilers emit for ``#pragma omp parallel``, the stable entry of every such runtime."""
    for path in _runtimes():
        function = getattr(ctypes.CDLL(path), "GOMP_parallel", None)
        if function is not None:
            function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
            function.restype = None
            return function  # type: ignore[no-any-return]
    return None


def _runtimes() -> list[str]:
    """OpenMP runtimes in this process, torch's own first: another package may have brought a second one."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return []
    mapped = {line.split(maxsplit=5)[5] for line in lines if "/" in line}
    found = [path for path in mapped if Path(path).name.startswith(("libgomp", "libiomp5", "libomp"))]
    home = str(Path(torch.__file__).parent)
    return sorted(found, key=lambda path: (not path.startswith(home), path))
