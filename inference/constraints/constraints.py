"""What the core's loop knows of constraints."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from inference.constraints.checker import Checker
from inference.constraints.compiler import Compiler, Job
from inference.constraints.lanes import Lanes
from inference.constraints.matcher import Matcher
from inference.constraints.vocabulary import Vocabulary
from inference.errors import InferenceError
from inference.protocol import Constraint, SamplingParams


class Constraints:
    """Compiles what requests ask for and advances it, off the loop's thread. Only the loop calls it.

    :param model_dir: the vocabulary's model store directory: rehearsals read it again.
    :param wake: called from other threads when :meth:`poll` has something, or a late mask is there.
    :ivar pending: requests whose constraint is being compiled.
    """

    def __init__(self, vocabulary: Vocabulary, model_dir: Path, wake: Callable[[], None]) -> None:
        self._lanes = Lanes(wake)
        self._compiler = Compiler(vocabulary, lambda: Checker(model_dir, vocabulary), wake=wake)
        self.pending = 0

    def matcher(self, constraint: Constraint, params: SamplingParams) -> Matcher:
        """Not compiled yet."""
        return Matcher(constraint, params, self._lanes.push)

    def begin(self, waiter: Any, matcher: Matcher, *, tenant: str, namespace: str) -> None:
        """Compile; :meth:`poll` hands the waiter back."""
        self.pending += 1
        self._compiler.submit(Job(waiter, matcher, tenant, namespace))

    def poll(self) -> list[tuple[Any, InferenceError | None]]:
        """Waiters whose matchers are compiled, or what is wrong with their constraints."""
        self._lanes.check(time.monotonic())
        ended = self._compiler.poll() if self.pending else []
        self.pending -= len(ended)
        return [(job.waiter, job.error) for job in ended]

    def close(self) -> None:
        self._compiler.close()
        self._lanes.close()
