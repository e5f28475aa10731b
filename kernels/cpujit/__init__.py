"""Loops for the CPU, compiled by numba at first use, and the threads that share them.

Why not ``numba.njit(parallel=True)``, nor torch's own threads: both wait at the end of each loop for every thread, also
for one that the system keeps from running, and a step of a model is hundreds of loops. See :mod:`cpujit.team`.
"""

from cpujit.kernel import Kernel
from cpujit.memory import at, float32s, int8s, int32s, int64s, next_item
from cpujit.places import own_place, scratch
from cpujit.threads import num_threads, run

__all__ = [
    "Kernel",
    "at",
    "float32s",
    "int8s",
    "int32s",
    "int64s",
    "next_item",
    "num_threads",
    "own_place",
    "run",
    "scratch",
]
