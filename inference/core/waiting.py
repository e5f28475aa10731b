"""The bounded queue of requests that do not run yet."""

from __future__ import annotations

import heapq
from collections import Counter

from inference.core.fairness import Fairness
from inference.core.sequence import Sequence, State


class WaitingQueue:
    """One heap a tenant, ordered by priority, then arrival; tenants compete by priority, then by what they got so far.

    Removal is lazy: a sequence whose state is no longer WAITING is dropped when it comes to the top.
    """

    def __init__(self) -> None:
        self._heaps: dict[str, list[tuple[int, int, Sequence]]] = {}
        self._live: Counter[str] = Counter()

    def __len__(self) -> int:
        return self._live.total()

    def push(self, sequence: Sequence) -> None:
        sequence.state = State.WAITING
        self._live[sequence.tenant] += 1
        heapq.heappush(self._heaps.setdefault(sequence.tenant, []), (*sequence.order, sequence))

    def remove(self, sequence: Sequence, state: State) -> None:
        """Take a waiting sequence out and give it its next state."""
        sequence.state = state
        self._live[sequence.tenant] -= 1
        if not self._live[sequence.tenant]:
            del self._live[sequence.tenant]
        heap = self._heaps[sequence.tenant]
        while heap and heap[0][2].state is not State.WAITING:
            heapq.heappop(heap)
        if not heap:
            del self._heaps[sequence.tenant]

    def next(self, fairness: Fairness) -> Sequence | None:
        """Whose turn it is: best priority, then least-served tenant, then first come."""
        best: tuple[int, float, int] | None = None
        chosen: Sequence | None = None
        for tenant, heap in self._heaps.items():
            priority, arrival, sequence = heap[0]
            key = (priority, fairness.served(tenant), arrival)
            if best is None or key < best:
                best, chosen = key, sequence
        return chosen
