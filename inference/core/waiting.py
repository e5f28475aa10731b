"""The bounded queue of requests that do not run yet."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator

from inference.core.fairness import Fairness
from inference.core.ranking import Ranking
from inference.core.sequence import Sequence, State


class WaitingQueue:
    """One heap a tenant, ordered by priority, then arrival; tenants compete by priority, then by what they got so far.

    Removal is lazy: a sequence whose state is no longer WAITING is dropped when it comes to the top.
    """

    def __init__(self, fairness: Fairness) -> None:
        self._fairness = fairness
        self._heaps: dict[str, list[tuple[int, int, Sequence]]] = {}
        self._live: Counter[str] = Counter()
        self._parked: dict[str, set[Sequence]] = {}
        self._priorities: Counter[int] = Counter()
        self._passed: set[str] = set()
        self._turns = Ranking(self._turn)  # tenants that were not passed over
        self._crowds = Ranking(lambda tenant: -self._crowd(tenant))

    def __len__(self) -> int:
        return self._live.total()

    def __bool__(self) -> bool:
        return bool(self._live)

    @property
    def parked(self) -> int:
        return sum(map(len, self._parked.values()))

    def __iter__(self) -> Iterator[Sequence]:
        """All that wait and are not parked, in no order."""
        for heap in self._heaps.values():
            yield from (sequence for *_, sequence in heap if sequence.state is State.WAITING)

    def push(self, sequence: Sequence) -> None:
        self.unpark(sequence)
        sequence.state = State.WAITING
        self._live[sequence.tenant] += 1
        self._priorities[sequence.priority] += 1
        heap = self._heaps.setdefault(sequence.tenant, [])
        heapq.heappush(heap, (*sequence.order, sequence))
        if heap[0][2] is sequence and sequence.tenant not in self._passed:
            self._turns.put(sequence.tenant)
        self._crowds.put(sequence.tenant)

    def park(self, sequence: Sequence) -> None:
        """It waits for something else than its turn; until then it takes a place in the queue as others do."""
        sequence.state = State.PARKED
        self._parked.setdefault(sequence.tenant, set()).add(sequence)
        self._priorities[sequence.priority] += 1
        self._crowds.put(sequence.tenant)

    def unpark(self, sequence: Sequence) -> None:
        """What it waited for is there, or it has ended. Nothing happens where it was not parked."""
        parked = self._parked.get(sequence.tenant, set())
        if sequence not in parked:
            return
        parked.remove(sequence)
        if not parked:
            del self._parked[sequence.tenant]
        self._forget_priority(sequence)
        self._forget_crowd(sequence.tenant)

    def remove(self, sequence: Sequence, state: State) -> None:
        """Take a waiting sequence out and give it its next state."""
        sequence.state = state
        self._live[sequence.tenant] -= 1
        if not self._live[sequence.tenant]:
            del self._live[sequence.tenant]
        self._forget_priority(sequence)
        heap = self._heaps[sequence.tenant]
        while heap and heap[0][2].state is not State.WAITING:
            heapq.heappop(heap)
        if not heap:
            del self._heaps[sequence.tenant]
            self._turns.drop(sequence.tenant)
            self._forget_crowd(sequence.tenant)

    def next(self, among: Iterable[str] | None = None) -> Sequence | None:
        """Whose turn it is: best priority, then least-served tenant, then first come; nobody who was passed over.

        :param among: only these tenants' requests.
        """
        self._catch_up()
        if among is None:
            tenant = self._turns.least()
        else:
            waiting = [each for each in among if each in self._heaps and each not in self._passed]
            tenant = min(waiting, key=self._turn, default=None)
        return None if tenant is None else self._heaps[tenant][0][2]

    def pass_over(self, tenant: str) -> None:
        """The tenant has to wait, until :meth:`call_back`."""
        self._passed.add(tenant)
        self._turns.drop(tenant)

    def call_back(self) -> None:
        """Those who were passed over take part again."""
        for tenant in self._passed & self._heaps.keys():
            self._turns.put(tenant)
        self._passed.clear()

    def expendable(self, newcomer: Sequence, *, tenant: str | None = None) -> Sequence | None:
        """Who leaves a full queue for ``newcomer``; ``None``: nobody has less claim to a place.

        Worse priorities first. Within the newcomer's priority only a tenant that has more waiting for its weight, the
        newcomer counted, gives a place to another. Of the candidates the longest output goes, then the last to come;
        never one that has run already, or whose request has. Those that are parked are candidates as others are.

        :param tenant: look at this tenant's requests only.
        """
        worst = max(self._priorities, default=newcomer.priority)
        if worst > newcomer.priority:
            names = self._heaps.keys() | self._parked.keys() if tenant is None else {tenant}
            found = [
                sequence for name in names for sequence in self._fresh(name) if sequence.priority > newcomer.priority
            ]
            if found:
                return max(found, key=lambda sequence: (sequence.priority, sequence.left, sequence.arrival))
        self._catch_up()
        largest = self._crowds.least()
        if tenant is not None or largest is None or largest == newcomer.tenant:
            return None
        if self._crowd(largest) <= self._crowd(newcomer.tenant, 1, newcomer.weight):
            return None
        candidates = [sequence for sequence in self._fresh(largest) if sequence.priority == newcomer.priority]
        return max(candidates, key=lambda sequence: (sequence.left, sequence.arrival), default=None)

    def _turn(self, tenant: str) -> tuple[int, float, int]:
        priority, arrival, _ = self._heaps[tenant][0]
        return (priority, self._fairness.committed(tenant), arrival)

    def _crowd(self, tenant: str, more: int = 0, weight: int = 1) -> float:
        """The tenant's waiting requests and so many more, for its weight; ``weight`` if it has none yet."""
        return (self._live[tenant] + len(self._parked.get(tenant, ())) + more) / self._fairness.weight(tenant, weight)

    def _catch_up(self) -> None:
        for tenant in self._fairness.lowered & (self._heaps.keys() | self._parked.keys()):
            self._crowds.put(tenant)
            if tenant in self._heaps and tenant not in self._passed:
                self._turns.put(tenant)
        self._fairness.lowered.clear()

    def _fresh(self, tenant: str) -> list[Sequence]:
        """The tenant's waiting requests that have never run."""
        waiting = [sequence for *_, sequence in self._heaps.get(tenant, []) if sequence.state is State.WAITING]
        both = [*waiting, *self._parked.get(tenant, ())]
        return [sequence for sequence in both if not (sequence.admitted or sequence.begun)]

    def _forget_priority(self, sequence: Sequence) -> None:
        self._priorities[sequence.priority] -= 1
        if not self._priorities[sequence.priority]:
            del self._priorities[sequence.priority]

    def _forget_crowd(self, tenant: str) -> None:
        if tenant not in self._heaps and tenant not in self._parked:
            self._crowds.drop(tenant)
