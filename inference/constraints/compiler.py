"""Constraints become matchers while their requests wait."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from inference.constraints.checker import Checker
from inference.constraints.grammar import grammar_of
from inference.constraints.lanes import start_thread
from inference.constraints.matcher import Matcher, refusal
from inference.constraints.verdicts import Verdicts
from inference.constraints.vocabulary import Vocabulary
from inference.errors import InferenceError, InvalidRequest

log = logging.getLogger(__name__)

WORKERS = 2
PER_TENANT = WORKERS - 1
NICE = 10
HALF_LIFE_SECONDS = 60.0
MAX_TENANTS = 1024


@dataclass(slots=True)
class Job:
    """One request's constraint on its way; ``error`` is set if it has none.

    :ivar waiter: whoever asked, handed back by :meth:`Compiler.poll`.
    """

    waiter: Any
    matcher: Matcher
    tenant: str
    namespace: str
    error: InferenceError | None = None


class Compiler:
    """Two threads of low priority, each with a rehearsal process. The tenant that has used least time is next.

    A tenant occupies one thread at most, so that its heavy schemas delay another's by nothing but the wait for CPU.

    :param wake: called from a thread when :meth:`poll` has something.
    """

    def __init__(self, vocabulary: Vocabulary, checker: Callable[[], Checker], *, wake: Callable[[], None]) -> None:
        self._vocabulary, self._wake = vocabulary, wake
        self._changed = threading.Condition()
        self._waiting: dict[str, deque[Job]] = {}
        self._busy: Counter[str] = Counter()
        self._used: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._verdicts = Verdicts()
        self._done: deque[Job] = deque()
        self._closed = False
        for number in range(WORKERS):
            start_thread(f"compiler-{number}", NICE, lambda: self._work(checker()))

    def submit(self, job: Job) -> None:
        """Those of the tenant whose requests were aborted end here: the queue stays within the bound of live ones."""
        with self._changed:
            waiting = self._waiting.get(job.tenant, ())
            aborted = [each for each in waiting if each.matcher.closed]
            self._waiting[job.tenant] = deque([*(each for each in waiting if not each.matcher.closed), job])
            self._changed.notify()
        if aborted:
            self._done += aborted
            self._wake()

    def poll(self) -> list[Job]:
        """Jobs that have ended since the last call."""
        ended = []
        while self._done:
            ended.append(self._done.popleft())
        return ended

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _work(self, checker: Checker) -> None:
        try:
            while (job := self._next()) is not None:
                began = time.monotonic()
                try:
                    self._compile(job, checker)
                except InferenceError as error:
                    job.error = error
                except Exception:
                    log.exception("a constraint could not be compiled")
                    job.error = InvalidRequest(*refusal(job.matcher.constraint, "it cannot be compiled"))
                self._end(job, time.monotonic() - began)
        finally:
            checker.close()

    def _next(self) -> Job | None:
        """Waits for a job; ``None``: closed."""
        with self._changed:
            while not self._closed:
                ready = [tenant for tenant in self._waiting if self._busy[tenant] < PER_TENANT]
                if ready:
                    tenant = min(ready, key=self._seconds)
                    jobs = self._waiting[tenant]
                    job = jobs.popleft()
                    if not jobs:
                        del self._waiting[tenant]
                    self._busy[tenant] += 1
                    return job
                self._changed.wait()
            return None

    def _compile(self, job: Job, checker: Checker) -> None:
        """Raises what is wrong with the constraint; only what says something about it is remembered."""
        matcher = job.matcher
        if matcher.closed:
            return
        constraint = matcher.constraint
        if constraint.kind == "json_object":  # our own words
            known, error = True, None
        else:
            with self._changed:
                known, error = self._verdicts.find(job.namespace, constraint)
        if not known:
            error = checker.check(grammar_of(constraint))
            with self._changed:
                self._verdicts.add(job.namespace, constraint, error)
        if error is not None:
            raise InvalidRequest(*refusal(constraint, error))
        matcher.compile(self._vocabulary)

    def _end(self, job: Job, seconds: float) -> None:
        with self._changed:
            self._busy[job.tenant] -= 1
            if not self._busy[job.tenant]:
                del self._busy[job.tenant]
            self._used[job.tenant] = (self._seconds(job.tenant) + seconds, time.monotonic())
            self._used.move_to_end(job.tenant)
            if len(self._used) > MAX_TENANTS:
                self._used.popitem(last=False)
            self._changed.notify()
        self._done.append(job)
        self._wake()

    def _seconds(self, tenant: str) -> float:
        """Time that the tenant has used, of late."""
        seconds, at = self._used.get(tenant, (0.0, 0.0))
        return seconds * float(0.5 ** ((time.monotonic() - at) / HALF_LIFE_SECONDS))
