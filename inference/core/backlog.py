"""How many requests wait, altogether and of each tenant, and how long the queue is in time."""

from __future__ import annotations

from collections import Counter

from inference.core.limits import Limits
from inference.errors import Overloaded

_MEMORY = 0.9
"""Weight of one admission's interval against the next one's."""
_LONGEST_RETRY = 60.0


class Backlog:
    """Counts what is not running: in the queue, or parked until its adapter is there."""

    def __init__(self, limits: Limits) -> None:
        self.total = 0
        self._limits = limits
        self._of: Counter[str] = Counter()
        self._interval = 0.0  # seconds between admissions while some wait
        self._last: float | None = None

    def full(self) -> Overloaded | None:
        """The error for one more request, if the queue is full."""
        if self.total < self._limits.max_waiting:
            return None
        return Overloaded("The worker's queue is full", self._wait(self.total))

    def full_for(self, tenant: str) -> Overloaded | None:
        """The same for the tenant's own part of it."""
        if self._of[tenant] < self._limits.max_waiting_per_tenant:
            return None
        # Tenants take turns: until this one has a place again, each of the others may have had one.
        return Overloaded("The tenant's queue at this worker is full", self._wait(len(self._of)))

    def enter(self, tenant: str) -> None:
        self.total += 1
        self._of[tenant] += 1

    def leave(self, tenant: str) -> None:
        self.total -= 1
        self._of[tenant] -= 1
        if not self._of[tenant]:
            del self._of[tenant]

    def admitted(self, now: float) -> None:
        """A request has left the queue to run."""
        if self._last is not None and self.total:
            self._interval += (1 - _MEMORY) * (now - self._last - self._interval)
        self._last = now

    def check_empty(self) -> None:
        """Raises ``AssertionError`` unless nothing is counted."""
        assert self.total == 0, "the queue's count is off"
        assert not self._of, "a tenant's queue count is off"

    def _wait(self, places: int) -> float:
        """Seconds until so many have been admitted, as things go now."""
        return min(max(1.0, places * self._interval), _LONGEST_RETRY)
