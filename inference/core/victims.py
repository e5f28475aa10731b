"""Who gives way when blocks or places in the step run out.

The worse priority goes first. Among equals it is the tenant that holds most for its weight, and of its requests the one
with the longest output still to come; one that had to give way :data:`SPARED` times is left alone while there is
another. A request that gives way keeps its tokens and, in the prefix cache, what nobody else needs of its blocks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from collections.abc import Sequence as Seq

from inference.core.fairness import Fairness
from inference.core.sequence import Sequence

SPARED = 2


def blocks_of(sequence: Sequence) -> int:
    return len(sequence.blocks)


def place_of(sequence: Sequence) -> int:
    return 1


def for_running(running: Seq[Sequence], fairness: Fairness) -> Sequence:
    """Gives its blocks to a running sequence that needs one; it may be that sequence itself."""
    worst = max(sequence.priority for sequence in running)
    held = _held(running, blocks_of)
    candidates = [sequence for sequence in running if sequence.priority == worst]
    return _of_the_largest(candidates, held, fairness)


class Holdings:
    """What the running sequences' tenants hold of what is short; true until somebody starts or stops running.

    :param measure: what a sequence holds of it, of ``capacity`` altogether.
    """

    def __init__(
        self, running: Seq[Sequence], fairness: Fairness, measure: Callable[[Sequence], int], capacity: int
    ) -> None:
        self._running, self._fairness, self._measure, self._capacity = running, fairness, measure, capacity
        self._held = held = _held(running, measure)
        self._worst = max((sequence.priority for sequence in running), default=0)
        over = {tenant for tenant, count in held.items() if count > max(1.0, fairness.share(tenant) * capacity)}
        self._ready: dict[int, list[Sequence]] = {}  # by priority: those who may give way to their like
        for sequence in running:
            if sequence.tenant in over and sequence.preempted < SPARED:
                self._ready.setdefault(sequence.priority, []).append(sequence)

    def victim(self, newcomer: Sequence, needed: int) -> Sequence | None:
        """Makes room for a request that waits; ``None``: it has to go on waiting.

        A better priority takes from a worse one. Within a priority a tenant takes only up to its share by weight, or
        what one request needs if it has nothing and was served less, and only from one that holds more than its own
        share; no request gives way to its like more than :data:`SPARED` times.
        """
        if self._running and self._worst > newcomer.priority:
            worst = [sequence for sequence in self._running if sequence.priority == self._worst]
            return _of_the_largest(worst, self._held, self._fairness)
        held = self._held[newcomer.tenant]
        least = -1.0  # what the victim's tenant has to have been served more than
        if held + needed > self._fairness.share(newcomer.tenant) * self._capacity:
            if held:
                return None
            least = self._fairness.committed(newcomer.tenant)
        candidates = [
            sequence
            for sequence in self._ready.get(newcomer.priority, ())
            if sequence.tenant != newcomer.tenant and self._fairness.committed(sequence.tenant) > least
        ]
        if not candidates or sum(map(self._measure, candidates)) < needed:
            return None  # giving way would not be enough
        return _of_the_largest(candidates, self._held, self._fairness)

    def hopeful(self, refused: Sequence) -> Collection[str] | None:
        """Tenants that may still find a victim for one of what is short when ``refused`` did not; ``None``: any.

        Only those whose turn comes after its own matter. Nobody of a worse priority than its own runs, or it would
        have been served; so no worse priority will be. Of its own priority

        - nobody will be, if there is nobody left who may give way;
        - everybody may be, if it was refused for what its tenant holds already, which can happen to as many tenants
          as run;
        - otherwise those who may give way were served no more than it was, and hence no more than who comes after it:
          what is left are tenants whose share entitles them to at least one, no more than there is capacity.
        """
        if not self._ready.get(refused.priority):
            return ()
        return None if self._held[refused.tenant] else self._fairness.with_share(1 / self._capacity)


def _held(running: Iterable[Sequence], measure: Callable[[Sequence], int]) -> Counter[str]:
    held: Counter[str] = Counter()
    for sequence in running:
        held[sequence.tenant] += measure(sequence)
    return held


def _of_the_largest(candidates: Seq[Sequence], held: Counter[str], fairness: Fairness) -> Sequence:
    newest: dict[str, int] = {}
    for sequence in candidates:
        newest[sequence.tenant] = max(newest.get(sequence.tenant, -1), sequence.arrival)
    largest = max(newest, key=lambda tenant: (held[tenant] / fairness.weight(tenant), newest[tenant]))
    return max(
        (sequence for sequence in candidates if sequence.tenant == largest),
        key=lambda sequence: (sequence.preempted < SPARED, sequence.left, sequence.arrival),
    )
