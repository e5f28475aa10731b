"""Who of the waiting is let in, and what it gets: a place among the running, its adapter's slot, blocks."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Collection

from inference.core import victims
from inference.core.backlog import Backlog
from inference.core.fairness import Fairness
from inference.core.limits import Limits
from inference.core.prefix_cache import PrefixCache
from inference.core.residency import Residency
from inference.core.sequence import Sequence, State
from inference.core.victims import Holdings
from inference.core.waiting import WaitingQueue


class Admission:
    """Moves sequences from the queue to the running ones, between steps.

    :param running: kept in order; shared with the scheduler. :param give_way: takes one of them out for another.
    """

    def __init__(
        self,
        limits: Limits,
        cache: PrefixCache,
        residency: Residency,
        fairness: Fairness,
        *,
        waiting: WaitingQueue,
        backlog: Backlog,
        running: list[Sequence],
        give_way: Callable[[Sequence], None],
    ) -> None:
        self._limits, self._cache, self._residency, self._fairness = limits, cache, residency, fairness
        self._waiting, self._backlog, self._running = waiting, backlog, running
        self._give_way = give_way
        self._block_size = cache.block_size

    def admit(self, now: float) -> list[Sequence]:
        """Take in who waits, in turn; those of them that never ran before."""
        started: list[Sequence] = []
        places: Holdings | None = None
        hopeful: Collection[str] | None = None
        self._waiting.call_back()
        while (sequence := self._waiting.next(hopeful)) is not None:
            places = places or self._places()
            victim = sequence if places is None else places.victim(sequence, 1)
            if places is not None and victim is None:
                remaining = places.hopeful(sequence)
                hopeful = hopeful if remaining is None else remaining
            if victim is None or self._is_busy(sequence):
                self._waiting.pass_over(sequence.tenant)
                continue
            if not self._pin(sequence, now):
                continue
            if victim is not sequence:
                self._give_way(victim)
            if not self._take_blocks(sequence):
                break
            places = None
            self._waiting.remove(sequence, State.RUNNING)
            self._backlog.leave(sequence.tenant)
            self._backlog.admitted(now)
            bisect.insort(self._running, sequence, key=lambda running: running.order)
            if not sequence.admitted:
                self._count_admission(sequence, now)
                started.append(sequence)
        return started

    def _places(self) -> Holdings | None:
        """Who holds the places among the running ones; ``None``: there is a free one."""
        if len(self._running) < self._limits.max_running:
            return None
        return Holdings(self._running, self._fairness, victims.place_of, self._limits.max_running)

    def _is_busy(self, sequence: Sequence) -> bool:
        """Whether prompts of its tenant that go before it fill a step already: one more would only hold blocks."""
        pending = sum(
            running.pending
            for running in self._running
            if running.tenant == sequence.tenant and running.priority <= sequence.priority and running.pending > 1
        )
        return pending >= self._limits.token_budget

    def _pin(self, sequence: Sequence, now: float) -> bool:
        """A pin on the adapter's slot; without one the sequence is parked and others go ahead."""
        if sequence.adapter is None or sequence.pinned:
            return True
        slot = self._residency.acquire(sequence.adapter, now)
        if slot is None:
            self._waiting.remove(sequence, State.PARKED)
            self._waiting.park(sequence)
            self._residency.park(sequence.adapter, sequence, now)
            return False
        sequence.slot, sequence.pinned = slot, True
        return True

    def _take_blocks(self, sequence: Sequence) -> bool:
        """Blocks for all tokens so far, cached ones first; all or nothing.

        All at once although the prompt is computed in chunks: half-computed prompts that preempt each other would be
        work done twice.
        """
        pool, owner, weight = self._cache.pool, sequence.namespace, sequence.weight
        start = self._cache.start(sequence.adapter, owner)
        blocks, chain = self._cache.match(start, sequence.reusable)
        needed = -(-len(sequence.tokens) // self._block_size) - len(blocks)
        for block in blocks:
            pool.share(block)
        while not pool.fits(owner, needed + (pool.total // 100 if self._running else 0), weight):
            victim = Holdings(self._running, self._fairness, victims.blocks_of, pool.total).victim(sequence, needed)
            if victim is None:
                self._cache.release(blocks)
                return False
            self._give_way(victim)
        sequence.blocks = blocks + pool.allocate(owner, needed, weight)
        sequence.chain = chain
        sequence.computed = len(blocks) * self._block_size
        return True

    def _count_admission(self, sequence: Sequence, now: float) -> None:
        """What is noted when a request runs for the first time."""
        sequence.admitted = True
        sequence.waited = now - sequence.queued_at
        sequence.cached_tokens = sequence.charged = sequence.computed
        self._cache.count(len(sequence.prompt), sequence.computed)
        self._fairness.promise(sequence.tenant, len(sequence.prompt) - sequence.computed)
