"""Weighted virtual token counters: the tenant served least is served next."""

from __future__ import annotations

from collections import Counter, OrderedDict

from inference.core.ranking import Ranking

INPUT_COST = 1.0
OUTPUT_COST = 2.0
"""A generated token costs a whole pass over the weights; a prompt token shares one with its chunk."""

RECENT_SECONDS = 120.0
"""How long a tenant that has left still counts as a rival for the length of a step."""
_HALF_LIFE = 10.0
"""Seconds after which what a tenant used counts half."""
_LARGEST_GROWTH = 2.0**40


class Fairness:
    """Tokens served to each active tenant, divided by its weight (VTC, arXiv 2401.00588).

    A tenant is active while it has a request waiting or running. One that becomes active is lifted to the least
    counter among the active ones, so that idleness earns no credit; when nobody is active all is forgotten.

    Prompt tokens are promised when a request is admitted and served when they are computed: who is admitted next goes
    by both. Whose prompt is computed next goes by what each used lately: the lift makes a tenant that comes now and
    then equal to one that never rests, and a moment's work would put it behind.

    :ivar lowered: tenants whose :meth:`committed` may have fallen, or whose weight has changed; whoever orders by them
        empties it.
    """

    def __init__(self) -> None:
        self._served: dict[str, float] = {}
        self._promised: Counter[str] = Counter()
        self._live: Counter[str] = Counter()
        self._weights: dict[str, int] = {}
        self._of_weight: dict[int, dict[str, None]] = {}
        self._total = 0  # of the weights
        self.lowered: set[str] = set()
        self._left: OrderedDict[str, float] = OrderedDict()
        # What was used lately: instead of all that is old shrinking, what is new grows.
        self._recent: dict[str, float] = {}
        self._growth = 1.0
        self._now = 0.0
        self._by_served = Ranking(self.served)  # the active ones
        self._by_recent = Ranking(self.recent)  # these and those who left a moment ago

    def join(self, tenant: str, weight: int = 1) -> None:
        """One more live request of the tenant."""
        if tenant not in self._live:
            self._served[tenant] = max(self._served.get(tenant, 0.0), self._floor())
            self._by_served.put(tenant)
            if tenant not in self._left:
                self._by_recent.put(tenant)
        self._live[tenant] += 1
        self._weigh(tenant, weight)
        self._left.pop(tenant, None)

    def leave(self, tenant: str) -> None:
        """One live request fewer."""
        self._live[tenant] -= 1
        if not self._live[tenant]:
            del self._live[tenant]
            self._weigh(tenant, 0)
            self._by_served.drop(tenant)
            self._promised.pop(tenant, None)
            self.lowered.discard(tenant)
            self._left[tenant] = self._now
        if not self._live:
            self._served.clear()
        if len(self._served) > 2 * len(self._live) + 64:
            self._prune()

    def promise(self, tenant: str, tokens: int) -> None:
        """Prompt tokens that are going to be computed; negative for those that will not be after all."""
        self._promised[tenant] += tokens
        if tokens < 0:
            self.lowered.add(tenant)

    def charge_input(self, tenant: str, weight: int, tokens: int) -> None:
        """Promised prompt tokens that were computed."""
        self._promised[tenant] -= tokens
        self._charge(tenant, tokens * INPUT_COST / weight)
        self.lowered.add(tenant)  # by rounding, or if the weight has changed since

    def charge_output(self, tenant: str, weight: int, tokens: int = 1) -> None:
        self._charge(tenant, tokens * OUTPUT_COST / weight)

    def served(self, tenant: str) -> float:
        return self._served.get(tenant, 0.0)

    def committed(self, tenant: str) -> float:
        """Served and promised."""
        return self.served(tenant) + self._promised.get(tenant, 0) * INPUT_COST / self._weights.get(tenant, 1)

    def weight(self, tenant: str, otherwise: int = 1) -> int:
        """The active tenant's weight, or ``otherwise`` if it is not active."""
        return self._weights.get(tenant, otherwise)

    def share(self, tenant: str) -> float:
        """The active tenant's part of everything, by weight, in (0, 1]."""
        return self._weights[tenant] / self._total

    def with_share(self, least: float) -> list[str]:
        """Active tenants whose :meth:`share` is at least so much: no more than ``1 / least``."""
        heavy = [tenants for weight, tenants in self._of_weight.items() if weight / self._total >= least]
        return [tenant for tenants in heavy for tenant in tenants]

    @property
    def active(self) -> int:
        """Tenants with a live request."""
        return len(self._live)

    def tick(self, now: float) -> None:
        """Time passes, between steps."""
        # Bounded: an idle core's next tick may be days later, and its first one is as late as the machine is old.
        self._growth *= 2.0 ** min(max(0.0, now - self._now) / _HALF_LIFE, 512.0)
        self._now = now
        if self._growth > _LARGEST_GROWTH:
            self._recent = {tenant: used / self._growth for tenant, used in self._recent.items()}
            self._growth = 1.0
            for tenant in (*self._left, *self._live):
                self._by_recent.put(tenant)
        while self._left and next(iter(self._left.values())) < now - RECENT_SECONDS:
            tenant, _ = self._left.popitem(last=False)
            self._recent.pop(tenant, None)
            self._by_recent.drop(tenant)

    def recent(self, tenant: str) -> float:
        """What the tenant used lately for its weight, to compare with others'."""
        return self._recent.get(tenant, 0.0)

    def leader(self) -> str | None:
        """The one who used least lately, of those who are active or were a moment ago; ``None`` when one is alone."""
        if len(self._live) + len(self._left) < 2:
            return None
        return self._by_recent.least()

    def check_idle(self) -> None:
        """Raises ``AssertionError`` unless nobody is active and nothing promised."""
        assert not self._live, "a tenant stayed active"
        assert (self._weights, self._of_weight, self._total) == ({}, {}, 0), "a tenant's weight stayed"
        assert not self.lowered, "a tenant stayed noted"
        assert not self._promised.total(), "prompt tokens stayed promised"
        assert set(self._recent) <= set(self._left), "the use of a tenant that is gone stayed"

    def _charge(self, tenant: str, cost: float) -> None:
        self._served[tenant] += cost
        self._recent[tenant] = self.recent(tenant) + cost * self._growth

    def _weigh(self, tenant: str, weight: int) -> None:
        """The tenant's weight from now on; 0: none."""
        before = self._weights.pop(tenant, 0)
        if weight:
            self._weights[tenant] = weight
        if before == weight:
            return
        self._total += weight - before
        if before:
            del self._of_weight[before][tenant]
            if not self._of_weight[before]:
                del self._of_weight[before]
            self.lowered.add(tenant)
        if weight:
            self._of_weight.setdefault(weight, {})[tenant] = None

    def _floor(self) -> float:
        """What the active tenant that was served least has got."""
        least = self._by_served.least()
        return 0.0 if least is None else self._served[least]

    def _prune(self) -> None:
        """Forget idle tenants that would be lifted to the floor anyway."""
        floor = self._floor()
        self._served = {
            tenant: served for tenant, served in self._served.items() if served > floor or tenant in self._live
        }
