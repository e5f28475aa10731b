"""How many requests wait, altogether and of each tenant."""

from __future__ import annotations

from collections import Counter

from inference.core.limits import Limits
from inference.errors import Overloaded


class Backlog:
    """Counts what is not running: in the queue, or parked until its adapter is there."""

    def __init__(self, limits: Limits) -> None:
        self.total = 0
        self._limits = limits
        self._of: Counter[str] = Counter()

    def check_room(self, tenant: str) -> None:
        """Raises :class:`Overloaded` if one more request of the tenant is too many."""
        if self.total >= self._limits.max_waiting:
            raise Overloaded("The worker's queue is full")
        if self._of[tenant] >= self._limits.max_waiting_per_tenant:
            raise Overloaded("The tenant's queue at this worker is full")

    def enter(self, tenant: str) -> None:
        self.total += 1
        self._of[tenant] += 1

    def leave(self, tenant: str) -> None:
        self.total -= 1
        self._of[tenant] -= 1
        if not self._of[tenant]:
            del self._of[tenant]

    def check_empty(self) -> None:
        """Raises ``AssertionError`` unless nothing is counted."""
        assert self.total == 0, "the queue's count is off"
        assert not self._of, "a tenant's queue count is off"
