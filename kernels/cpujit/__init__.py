"""Loops for the CPU, compiled by numba at first use, that run on the threads which torch already has.

Why not ``numba.njit(parallel=True)``: it brings a second pool of threads, and torch's spin for a while after each
operation: on two cores the pools would take the cores from each other.
"""

from cpujit.kernel import Kernel
from cpujit.memory import at, float32s, int8s, int64s, next_item, uint8s
from cpujit.threads import run

__all__ = ["Kernel", "at", "float32s", "int8s", "int64s", "next_item", "run", "uint8s"]
