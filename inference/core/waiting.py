"""The bounded queue of requests that do not run yet."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection

from inference.core.fairness import Fairness
from inference.core.sequence import Sequence, State


class WaitingQueue:
    """One heap a tenant, ordered by priority, then arrival; tenants compete by priority, then by what they got so far.

    Removal is lazy: a sequence whose state is no longer WAITING is dropped when it comes to the top.
    """

    def __init__(self) -> None:
        self._heaps: dict[str, list[tuple[int, int, Sequence]]] = {}
        self._live: Counter[str] = Counter()
        self._priorities: Counter[int] = Counter()

    def __len__(self) -> int:
        return self._live.total()

    def push(self, sequence: Sequence) -> None:
        sequence.state = State.WAITING
        self._live[sequence.tenant] += 1
        self._priorities[sequence.priority] += 1
        heapq.heappush(self._heaps.setdefault(sequence.tenant, []), (*sequence.order, sequence))

    def remove(self, sequence: Sequence, state: State) -> None:
        """Take a waiting sequence out and give it its next state."""
        sequence.state = state
        self._live[sequence.tenant] -= 1
        if not self._live[sequence.tenant]:
            del self._live[sequence.tenant]
        self._priorities[sequence.priority] -= 1
        if not self._priorities[sequence.priority]:
            del self._priorities[sequence.priority]
        heap = self._heaps[sequence.tenant]
        while heap and heap[0][2].state is not State.WAITING:
            heapq.heappop(heap)
        if not heap:
            del self._heaps[sequence.tenant]

    def next(self, fairness: Fairness, passed: Collection[str] = ()) -> Sequence | None:
        """Whose turn it is: best priority, then least-served tenant, then first come.

        :param passed: tenants that have to wait this time.
        """
        best: tuple[int, float, int] | None = None
        chosen: Sequence | None = None
        for tenant, heap in self._heaps.items():
            if tenant in passed:
                continue
            priority, arrival, sequence = heap[0]
            key = (priority, fairness.committed(tenant), arrival)
            if best is None or key < best:
                best, chosen = key, sequence
        return chosen

    def expendable(self, newcomer: Sequence, fairness: Fairness, *, tenant: str | None = None) -> Sequence | None:
        """Who leaves a full queue for ``newcomer``; ``None``: nobody has less claim to a place.

        Worse priorities first. Within the newcomer's priority only a tenant that has more waiting for its weight, the
        newcomer counted, gives a place to another. Of the candidates the longest output goes, then the last to come;
        never one that has run already.

        :param tenant: look at this tenant's requests only.
        """
        worst = max(self._priorities, default=newcomer.priority)
        if worst > newcomer.priority:
            names = list(self._heaps) if tenant is None else [tenant]
            found = [
                sequence for name in names for sequence in self._fresh(name) if sequence.priority > newcomer.priority
            ]
            if found:
                return max(found, key=lambda sequence: (sequence.priority, sequence.left, sequence.arrival))
        if tenant is not None or not self._live:
            return None

        def crowd(name: str, more: int = 0) -> float:
            return (self._live[name] + more) / fairness.weight(name, newcomer.weight)

        largest = max(self._live, key=crowd)
        if largest == newcomer.tenant or crowd(largest) <= crowd(newcomer.tenant, 1):
            return None
        candidates = [sequence for sequence in self._fresh(largest) if sequence.priority == newcomer.priority]
        return max(candidates, key=lambda sequence: (sequence.left, sequence.arrival), default=None)

    def _fresh(self, tenant: str) -> list[Sequence]:
        """The tenant's waiting requests that have never run."""
        heap = self._heaps.get(tenant, [])
        return [entry[2] for entry in heap if entry[2].state is State.WAITING and not entry[2].admitted]
