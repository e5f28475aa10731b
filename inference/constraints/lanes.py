"""The threads that compute masks while the device runs."""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections.abc import Callable

from inference.constraints.matcher import Matcher

log = logging.getLogger(__name__)

STACK_BYTES = 64 * 1024 * 1024
"""Of every thread that parses for strangers: twice what the rehearsal got by with. Address space, not memory."""
STUCK_SECONDS = 10.0
"""A mask that takes longer is given up, and its thread with it."""
SLOW_NICE = 10


class Lanes:
    """Two lanes, so that a language with costly masks delays only its own request.

    The fast lane's masks are joined just before sampling. A matcher that was slow once (:attr:`Matcher.slow`) moves to
    the other lane for good, a thread of lower priority, and its request skips the steps until its mask is there.

    :param wake: called when a slow mask is done: the core may be waiting for nothing else.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._fast = _Lane("masks", 0, lambda: None)
        self._slow = _Lane("slow-masks", SLOW_NICE, wake)

    def push(self, matcher: Matcher) -> None:
        """Have the matcher's next mask computed."""
        (self._slow if matcher.slow else self._fast).jobs.put(matcher)

    def check(self, now: float) -> None:
        """Give up masks that take too long; to be called now and then."""
        self._fast.check(now)
        self._slow.check(now)

    def close(self) -> None:
        self._fast.jobs.put(None)
        self._slow.jobs.put(None)


class _Lane:
    def __init__(self, name: str, nice: int, done: Callable[[], None]) -> None:
        self.jobs: queue.SimpleQueue[Matcher | None] = queue.SimpleQueue()
        self._name, self._nice, self._done = name, nice, done
        self._started = 0  # threads so far; only the last one goes on
        self._at: tuple[Matcher, float] | None = None
        self._start()

    def check(self, now: float) -> None:
        at = self._at
        if at is not None and now - at[1] > STUCK_SECONDS:
            log.error("a mask took more than %g s and was given up", STUCK_SECONDS)
            at[0].fail("the language is too complex to follow")
            self._at = None
            self._start()

    def _start(self) -> None:
        self._started = number = self._started + 1
        start_thread(self._name, self._nice, lambda: self._work(number))

    def _work(self, number: int) -> None:
        while number == self._started and (matcher := self.jobs.get()) is not None:
            self._at = at = (matcher, time.monotonic())
            try:
                matcher.step()
            except Exception:
                log.exception("a mask could not be computed")
                matcher.fail("the language cannot be followed")
            if self._at is at:
                self._at = None
            self._done()


def start_thread(name: str, nice: int, work: Callable[[], None]) -> threading.Thread:
    """A daemon with a deep stack, ``nice`` levels below the process where the system has such threads."""

    def run() -> None:
        if nice and hasattr(os, "setpriority"):
            me = threading.get_native_id()
            os.setpriority(os.PRIO_PROCESS, me, min(19, os.getpriority(os.PRIO_PROCESS, me) + nice))
        work()

    before = threading.stack_size(STACK_BYTES)
    try:
        thread = threading.Thread(target=run, name=name, daemon=True)
        thread.start()
    finally:
        threading.stack_size(before)
    return thread
