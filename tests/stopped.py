"""Processes that stand still, as one that hangs or is starved does."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

_STATE = 0  # in /proc/<pid>/stat, behind the name in parentheses, which may hold spaces


def stop(pid: int, seconds: float = 10.0) -> None:
    """Returns when no thread of it runs any more, until somebody sends it SIGCONT.

    The signal alone is not enough: until one thread, which may wait for a processor, has taken it, the others go on.
    Where there is no /proc the signal has to do.
    """
    os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + seconds
    while _running(pid):
        if time.monotonic() > deadline:
            raise TimeoutError(f"process {pid} does not stop")
        time.sleep(0.001)


def _running(pid: int) -> bool:
    """Some thread of it is neither stopped nor ended."""
    for thread in Path(f"/proc/{pid}/task").glob("*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            if thread.read_text().rpartition(") ")[2][_STATE] not in "TtZX":
                return True
    return False
