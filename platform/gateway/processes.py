"""The processes of one installation: started in order, watched, started again after a crash, stopped in reverse.

The supervisor runs in the main thread and forks from it: children are told by the kernel when it dies (see
``embedded/guard.py``), so that even ``kill -9`` of the supervisor leaves nothing behind.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from types import FrameType
from typing import Protocol

from gateway.embedded.errors import ServerFailed
from gateway.embedded.process import last_lines, spawn, stop

logger = logging.getLogger(__name__)

FIRST_DELAY, LONGEST_DELAY = 1.0, 30.0
STEADY_SECONDS = 60.0
"""A process that lived this long starts again with the first delay."""
SILENT_SECONDS = 1.0
"""Whoever waits longer for a process to stop is told which it was."""
_POLL_SECONDS = 0.2


class StopRequested(BaseException):
    """Ctrl-C, SIGTERM or a closed terminal, wherever the main thread happens to be; not an error."""


class Service(Protocol):
    """Something with a process that the supervisor starts and stops."""

    log: Path
    process: subprocess.Popen[bytes] | None

    def start(self) -> None:
        """Start and wait until ready. Raises :class:`~gateway.embedded.errors.ServerFailed`."""
        ...

    def stop(self) -> None:
        """Ask, wait, kill. Does nothing when not running."""
        ...


@dataclass
class Child:
    """One of our own processes.

    :param ready: asked again and again until true; the process may die or ``timeout`` seconds pass meanwhile. What it
        raises counts as not ready.
    :param timeout: long enough for a slow machine on which all of them start at once.
    :param patience: seconds between SIGTERM and SIGKILL.
    :param needed: by those started after it: it stops when they have. Others stop at the same time.
    """

    name: str
    command: Sequence[str]
    log: Path
    ready: Callable[[Child], bool]
    env: dict[str, str]
    timeout: float = 180.0
    patience: float = 10.0
    needed: bool = False
    process: subprocess.Popen[bytes] | None = None
    _log_start: int = 0
    _deadline: float = 0.0

    def start(self) -> None:
        self.launch()
        while not self.arrived():
            time.sleep(_POLL_SECONDS)

    def launch(self) -> None:
        """Start and return at once; from then on ask :meth:`arrived`. Raises ``OSError`` when it cannot be spawned."""
        self._log_start = self.log.stat().st_size if self.log.exists() else 0
        self.process = spawn(self.command, self.log, env=self.env)
        self._deadline = time.monotonic() + self.timeout

    def arrived(self) -> bool:
        """Whether it is ready by now. Raises ``ServerFailed``, the process stopped, when it died or is overdue."""
        if self.process is None:
            raise ServerFailed(f"The {self.name} was not started.")
        status = self.process.poll()
        if status is None and self._is_ready():
            return True
        if status is None and time.monotonic() <= self._deadline:
            return False
        what = f"was not ready within {self.timeout:.0f} s"
        if status is not None:
            what = f"stopped with exit status {status} before it was ready"
        self.stop()
        raise ServerFailed(f"The {self.name} {what}; {self.log} ends:\n{last_lines(self.log, since=self._log_start)}")

    def _is_ready(self) -> bool:
        try:
            return self.ready(self)
        except Exception as error:
            logger.debug("asking whether the %s is ready: %r", self.name, error)
            return False

    def stop(self) -> None:
        if self.process is not None:
            stop(self.process, signal.SIGTERM, self.patience)
            self.process = None

    def output(self) -> str:
        """What it has logged since it was last started."""
        with suppress(OSError), self.log.open("rb") as file:
            file.seek(self._log_start)
            return file.read().decode(errors="replace")
        return ""


@dataclass
class _Watched:
    name: str
    service: Service
    started: float
    delay: float = FIRST_DELAY
    due: float | None = None
    arriving: bool = False
    """Launched again, not ready yet: the others are watched meanwhile."""

    @property
    def beside(self) -> bool:
        return isinstance(self.service, Child) and not self.service.needed


@dataclass
class Supervisor:
    """Use as a context manager: whatever ends the block, every process it started is stopped, and no other.

    :param say: tells the operator one line.
    """

    say: Callable[[str], None]
    _watched: list[_Watched] = field(default_factory=list)
    _stopping: bool = False
    _handlers: dict[int, object] = field(default_factory=dict)

    def __enter__(self) -> Supervisor:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            self._handlers[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping = True
        for together, group in groupby(reversed(self._watched), key=lambda watched: watched.beside):
            with ThreadPoolExecutor(max_workers=16 if together else 1) as stops:
                list(stops.map(self._stop, group))  # raises what one of them raised, once all have tried
        for number, handler in self._handlers.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _stop(self, watched: _Watched) -> None:
        begun = time.monotonic()
        watched.service.stop()
        if time.monotonic() - begun > SILENT_SECONDS:
            self.say(f"  {watched.name} has stopped ({time.monotonic() - begun:.1f} s)")

    def start(self, name: str, service: Service) -> None:
        """Start and wait until ready; from now on it is watched."""
        begun = time.monotonic()
        self._watched.append(_Watched(name, service, begun))
        service.start()
        self._ready(name, begun)

    def start_together(self, children: Iterable[Child]) -> None:
        """As :meth:`start`, all at once."""
        begun = time.monotonic()
        waiting = list(children)
        for child in waiting:
            self._watched.append(_Watched(child.name, child, begun))
            child.launch()
        while waiting:
            for child in [child for child in waiting if child.arrived()]:
                waiting.remove(child)
                self._ready(child.name, begun)
            time.sleep(_POLL_SECONDS)

    def _ready(self, name: str, begun: float) -> None:
        self.say(f"  {name} is ready ({time.monotonic() - begun:.1f} s)")

    def watch(self) -> None:
        """Until :class:`StopRequested`: start again what crashed, later each time.

        Nothing that goes wrong with one service ends this or keeps another down; only the embedded servers, which
        everything else needs, are waited for.
        """
        while True:
            for watched in self._watched:
                try:
                    self._look_at(watched)
                except ServerFailed as error:
                    watched.arriving = False
                    logger.error("%s", error)
                except Exception:
                    logger.exception("%s could not be started again", watched.name)
            time.sleep(_POLL_SECONDS)

    def _look_at(self, watched: _Watched) -> None:
        now = time.monotonic()
        if watched.arriving:
            self._await(watched)
            return
        process = watched.service.process
        if watched.due is None and (process is None or process.poll() is not None):
            if now - watched.started > STEADY_SECONDS:
                watched.delay = FIRST_DELAY
            status = None if process is None else process.returncode
            self.say(
                f"{watched.name} stopped (exit status {status}); again in {watched.delay:.0f} s. "
                f"See {watched.service.log}"
            )
            watched.due = now + watched.delay
            watched.delay = min(watched.delay * 2, LONGEST_DELAY)
            watched.service.stop()  # what its leader left of its group
        elif watched.due is not None and now >= watched.due:
            watched.due, watched.started = None, now
            if isinstance(watched.service, Child):
                watched.service.launch()
                watched.arriving = True
            else:
                watched.service.start()
                self.say(f"{watched.name} is ready again")

    def _await(self, watched: _Watched) -> None:
        if isinstance(watched.service, Child) and watched.service.arrived():
            watched.arriving = False
            self.say(f"{watched.name} is ready again")

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if not self._stopping:
            self._stopping = True
            raise StopRequested
        for watched in self._watched:  # asked twice: no more patience
            if watched.service.process is not None and watched.service.process.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(watched.service.process.pid, signal.SIGKILL)
