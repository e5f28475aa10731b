"""Who gives way when blocks or places in the step run out.

The worse priority goes first. Among equals it is the tenant that holds most for its weight, and of its requests the one
with the longest output still to come; one that had to give way :data:`SPARED` times is left alone while there is
another. A request that gives way keeps its tokens and, in the prefix cache, what nobody else needs of its blocks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
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


def for_newcomer(
    newcomer: Sequence,
    running: Seq[Sequence],
    fairness: Fairness,
    *,
    measure: Callable[[Sequence], int],
    needed: int,
    capacity: int,
) -> Sequence | None:
    """Makes room for a request that waits; ``None``: it has to go on waiting.

    A better priority takes from a worse one. Within a priority a tenant takes only up to its share by weight, or what
    one request needs if it has nothing and was served less, and only from one that holds more than its own share; no
    request gives way to its like more than :data:`SPARED` times.

    :param measure: what a sequence holds of what is short; ``needed`` of ``capacity`` is what the newcomer asks for.
    """
    worse = [sequence for sequence in running if sequence.priority > newcomer.priority]
    held = _held(running, measure)
    if worse:
        worst = max(sequence.priority for sequence in worse)
        return _of_the_largest([sequence for sequence in worse if sequence.priority == worst], held, fairness)
    over = {tenant for tenant, count in held.items() if count > max(1.0, fairness.share(tenant) * capacity)}
    if held[newcomer.tenant] + needed > fairness.share(newcomer.tenant) * capacity:
        if held[newcomer.tenant]:
            return None
        committed = fairness.committed(newcomer.tenant)
        over = {tenant for tenant in over if fairness.committed(tenant) > committed}
    candidates = [
        sequence
        for sequence in running
        if sequence.tenant in over
        and sequence.tenant != newcomer.tenant
        and sequence.priority == newcomer.priority
        and sequence.preempted < SPARED
    ]
    if not candidates or sum(measure(sequence) for sequence in candidates) < needed:
        return None  # giving way would not be enough
    return _of_the_largest(candidates, held, fairness)


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
