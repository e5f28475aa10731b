from __future__ import annotations

import time
from collections.abc import Callable


class Breaker:
    """Keeps requests away from a worker that keeps failing.

    Closed until ``threshold`` failures in a row; then open for ``pause`` seconds, doubling up to ``longest``; then one
    trial at a time, whose first token or failure closes or opens it again.
    """

    def __init__(
        self,
        *,
        threshold: int = 3,
        pause: float = 1.0,
        longest: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._threshold = threshold
        self._first_pause = self._pause = pause
        self._longest = longest
        self._clock = clock
        self._failures = 0
        self._opened_at: float | None = None
        self._trial_at: float | None = None
        self._on_trial = False  # closed by a first token, whose answer is not whole yet

    @property
    def allows(self) -> bool:
        """Whether a request may be sent now."""
        if self._opened_at is None:
            return True
        now = self._clock()
        if now - self._opened_at < self._pause:
            return False
        # A trial whose outcome nobody reported (its client left) must not keep the worker out for ever.
        return self._trial_at is None or now - self._trial_at >= self._pause

    def attempt(self) -> None:
        """A request is being sent."""
        if self._opened_at is not None:
            self._trial_at = self._clock()

    def answers(self) -> None:
        """The first token of a trial's answer is there: further requests need not wait for its last. Until that has
        come, the next failure opens it again, for longer.
        """
        if self._opened_at is not None and self._trial_at is not None:
            self._opened_at = self._trial_at = None
            self._on_trial = True

    def succeeded(self) -> None:
        self._failures = 0
        self._opened_at = self._trial_at = None
        self._on_trial = False
        self._pause = self._first_pause

    def failed(self) -> None:
        self._failures += 1
        if self._on_trial or (self._opened_at is not None and self._trial_at is not None):
            self._pause = min(self._pause * 2, self._longest)
        elif self._opened_at is not None or self._failures < self._threshold:
            return
        self._opened_at, self._trial_at, self._on_trial = self._clock(), None, False
