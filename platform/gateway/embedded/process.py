"""Starting one child process that dies with its parent, and stopping it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

_GUARD = Path(__file__).with_name("guard.py")


def spawn(
    command: Sequence[str | Path],
    log: Path,
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    user: tuple[int, int] | None = None,
    parting_signal: signal.Signals = signal.SIGTERM,
) -> subprocess.Popen[bytes]:
    """Start ``command`` in a session of its own, its output appended to ``log``.

    Call from a thread that lives as long as the child should: Linux sends ``parting_signal`` when that thread ends.

    :param user: uid and gid to run as; only root may say so.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    guarded = [sys.executable, "-S", "-E", str(_GUARD), str(os.getpid()), str(int(parting_signal))]
    if user is not None:
        guarded += ["--user", f"{user[0]}:{user[1]}"]
    with log.open("ab") as output:
        return subprocess.Popen(  # noqa: S603 - the command is our own
            [*guarded, "--", *map(str, command)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=None if env is None else dict(env),
            cwd=cwd,
            start_new_session=True,
        )


def stop(process: subprocess.Popen[bytes], first: signal.Signals = signal.SIGTERM, patience: float = 10.0) -> None:
    """Ask with ``first``, and after ``patience`` seconds kill whatever is left of the process's own group."""
    if process.poll() is None:
        process.send_signal(first)
        with suppress(subprocess.TimeoutExpired):
            process.wait(patience)
    # A leader that died may have left its children; the group's id is the leader's pid and is still taken by them.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def last_lines(log: Path, count: int = 12, limit: int = 16_384, *, since: int = 0) -> str:
    """The end of a log, for the sentence that says a process did not start. :param since: byte at which it began."""
    try:
        with log.open("rb") as file:
            file.seek(max(since, log.stat().st_size - limit))
            return "\n".join(file.read().decode(errors="replace").splitlines()[-count:])
    except OSError:
        return ""
