"""Weighted virtual token counters: the tenant served least is served next."""

from __future__ import annotations

from collections import Counter

INPUT_COST = 1.0
OUTPUT_COST = 2.0
"""A generated token costs a whole pass over the weights; a prompt token shares one with its chunk."""


class Fairness:
    """Tokens served to each active tenant, divided by its weight (VTC, arXiv 2401.00588).

    A tenant is active while it has a request waiting or running. One that becomes active is lifted to the least
    counter among the active ones, so that idleness earns no credit; when nobody is active all is forgotten.
    """

    def __init__(self) -> None:
        self._served: dict[str, float] = {}
        self._live: Counter[str] = Counter()

    def join(self, tenant: str) -> None:
        """One more live request of the tenant."""
        if not self._live[tenant]:
            floor = min((self._served[other] for other, live in self._live.items() if live), default=0.0)
            self._served[tenant] = max(self._served.get(tenant, 0.0), floor)
        self._live[tenant] += 1

    def leave(self, tenant: str) -> None:
        """One live request fewer."""
        self._live[tenant] -= 1
        if not self._live[tenant]:
            del self._live[tenant]
        if not self._live:
            self._served.clear()
        if len(self._served) > 2 * len(self._live) + 64:
            self._prune()

    def charge_input(self, tenant: str, weight: int, tokens: int) -> None:
        """Prompt tokens that were not cached; negative to refund those never computed."""
        self._served[tenant] += tokens * INPUT_COST / weight

    def charge_output(self, tenant: str, weight: int, tokens: int = 1) -> None:
        self._served[tenant] += tokens * OUTPUT_COST / weight

    def served(self, tenant: str) -> float:
        return self._served.get(tenant, 0.0)

    @property
    def active(self) -> int:
        """Tenants with a live request."""
        return len(self._live)

    def _prune(self) -> None:
        """Forget idle tenants that would be lifted to the floor anyway."""
        floor = min((self._served[tenant] for tenant in self._live), default=0.0)
        self._served = {
            tenant: served for tenant, served in self._served.items() if served > floor or tenant in self._live
        }
