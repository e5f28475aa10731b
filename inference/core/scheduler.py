"""Who computes what in the next step.

Continuous batching: a request joins and leaves between steps. Every step decodes all running sequences first, then
spends what is left of the token budget on prompts, in chunks. When blocks run out, the sequence that would be served
last gives up its blocks and is computed again later (mostly from the prefix cache).
"""

from __future__ import annotations

import bisect
import time
from collections.abc import Callable
from collections.abc import Sequence as Seq
from itertools import count

from inference.core.backlog import Backlog
from inference.core.batch import Batch, Progress
from inference.core.fairness import Fairness
from inference.core.limits import Limits
from inference.core.prefix_cache import PrefixCache
from inference.core.residency import Residency, Settled
from inference.core.sequence import Sequence, State
from inference.core.step import Sampled
from inference.core.waiting import WaitingQueue
from inference.errors import InvalidRequest
from inference.protocol import FinishReason


class Scheduler:
    """Owns the sequences, the blocks and the pins; never the device.

    One thread calls it: :meth:`add` and :meth:`abort` between steps, then :meth:`schedule`, then :meth:`postprocess`
    with the same batch.
    """

    def __init__(
        self,
        limits: Limits,
        cache: PrefixCache,
        residency: Residency,
        *,
        eos_token_ids: frozenset[int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.limits = limits
        self.cache = cache
        self.residency = residency
        self.fairness = Fairness()
        self.waiting = WaitingQueue()
        self.running: list[Sequence] = []
        self.preemptions = 0
        self._eos = eos_token_ids
        self._clock = clock
        self._live: dict[str, Sequence] = {}
        self._backlog = Backlog(limits)
        self._arrivals = count()
        self._block_size = cache.block_size

    @property
    def live(self) -> int:
        """Requests not finished yet."""
        return len(self._live)

    @property
    def queued(self) -> int:
        """Requests that wait: in the queue, or for their adapter."""
        return self._backlog.total

    def add(self, sequence: Sequence) -> None:
        """Queue a request.

        Raises :class:`InvalidRequest` if it can never run, :class:`Overloaded` if a queue is full.
        """
        if sequence.request_id in self._live:
            raise InvalidRequest("A request with this id is running")
        room = self.cache.pool.largest_request * self._block_size
        self.limits.check_fits(len(sequence.prompt), sequence.params.max_tokens, room=room)
        self._backlog.check_room(sequence.tenant)
        sequence.arrival = next(self._arrivals)
        sequence.queued_at = self._clock()
        sequence.root = self.cache.root(sequence.adapter, sequence.namespace)
        self._live[sequence.request_id] = sequence
        self.fairness.join(sequence.tenant)
        self._backlog.enter(sequence.tenant)
        self.waiting.push(sequence)

    def abort(self, request_id: str) -> Sequence | None:
        """Drop a request wherever it is; ``None`` if it has finished already."""
        sequence = self._live.get(request_id)
        if sequence is not None:
            self._finish(sequence)
        return sequence

    def settle(self, settled: Settled) -> list[Progress]:
        """Waiters of one adapter go back to the queue with their pin, or fail together."""
        if settled.error is not None:
            for sequence in settled.waiters:
                self._finish(sequence)
            return [Progress(sequence, error=settled.error) for sequence in settled.waiters]
        for sequence in settled.waiters:
            sequence.slot, sequence.pinned = settled.slot, True
            self.waiting.push(sequence)
        return []

    def schedule(self) -> Batch:
        """The next step's rows; empty when nothing can run now."""
        batch = Batch()
        now = self._clock()
        self.cache.pool.shares.tick(now)
        preemptions = self.preemptions
        budget = self.limits.token_budget - self._decode(batch)
        budget -= self._continue_prompts(batch, budget)
        if preemptions == self.preemptions:  # blocks just taken from one request are not for a newcomer
            self._admit(batch, budget, now)
        return batch

    def postprocess(self, batch: Batch, results: Seq[Sampled | None]) -> list[Progress]:
        """Account for one computed step; what each request gained."""
        progress = []
        for sequence, row, result in zip(batch.sequences, batch.rows, results, strict=True):
            sequence.computed += len(row.tokens)
            if sequence.computed >= (len(sequence.keys) + 1) * self._block_size:
                self._register_blocks(sequence)
            if row.params is None:
                continue
            assert result is not None, "the runner sampled no token where one was asked for"
            progress.append(self._gain(sequence, result))
        return progress

    def _gain(self, sequence: Sequence, result: Sampled) -> Progress:
        (token,) = result.tokens
        sequence.tokens.append(token)
        sequence.output.append(token)
        self.fairness.charge_output(sequence.tenant, sequence.weight)
        finish = self._finish_reason(sequence, token)
        if finish is not None:
            self._finish(sequence)
        return Progress(sequence, result.tokens, finish, logprobs=result.logprobs)

    def check_idle(self) -> None:
        """Raises ``AssertionError`` unless an idle core holds nothing: the conservation check."""
        self.cache.check()
        self.residency.check()
        assert not self.running, "idle with sequences running"
        assert not len(self.waiting), "idle with sequences waiting"
        assert self.cache.pool.in_use == 0, f"{self.cache.pool.in_use} blocks leaked"
        assert self.residency.pinned == 0, "a slot stayed pinned"
        self._backlog.check_empty()
        assert self.fairness.active == 0, "a tenant stayed active"

    # region one step

    def _decode(self, batch: Batch) -> int:
        """One token for every sequence whose prompt is done, best first; the worst are preempted for blocks."""
        index = 0
        while index < len(self.running):
            sequence = self.running[index]
            if sequence.pending == 1 and self._ensure_block(sequence):
                batch.append(sequence, 1)
            if sequence.state is State.RUNNING:
                index += 1
        return len(batch.rows)

    def _ensure_block(self, sequence: Sequence) -> bool:
        """A block for the next position; false when the sequence itself had to give way."""
        if sequence.computed < len(sequence.blocks) * self._block_size:
            return True
        pool = self.cache.pool
        while not pool.fits(sequence.namespace, 1):
            victim = self.running[-1]
            self._preempt(victim)
            if victim is sequence:
                return False
        sequence.blocks += pool.allocate(sequence.namespace)
        return True

    def _continue_prompts(self, batch: Batch, budget: int) -> int:
        used = 0
        for sequence in self.running:
            if used >= budget:
                break
            if sequence.pending > 1:
                used += batch.append(sequence, min(sequence.pending, budget - used))
        return used

    def _admit(self, batch: Batch, budget: int, now: float) -> None:
        while budget > 0 and len(self.running) < self.limits.max_running:
            sequence = self.waiting.next(self.fairness)
            if sequence is None:
                return
            if not self._pin(sequence, now):
                continue
            first = not sequence.admitted
            if not self._take_blocks(sequence):
                return
            if first:
                sequence.waited = now - sequence.queued_at
                batch.started.append(sequence)
            self.waiting.remove(sequence, State.RUNNING)
            self._backlog.leave(sequence.tenant)
            bisect.insort(self.running, sequence, key=lambda running: running.order)
            budget -= batch.append(sequence, min(sequence.pending, budget))

    def _pin(self, sequence: Sequence, now: float) -> bool:
        """A pin on the adapter's slot; without one the sequence is parked and others go ahead."""
        if sequence.adapter is None or sequence.pinned:
            return True
        slot = self.residency.acquire(sequence.adapter, now)
        if slot is None:
            self.waiting.remove(sequence, State.PARKED)
            self.residency.park(sequence.adapter, sequence, now)
            return False
        sequence.slot, sequence.pinned = slot, True
        return True

    def _take_blocks(self, sequence: Sequence) -> bool:
        """Blocks for all tokens so far, cached ones first; all or nothing.

        All at once although the prompt is computed in chunks: half-computed prompts that preempt each other would be
        work done twice.
        """
        pool = self.cache.pool
        blocks, keys = self.cache.match(sequence.root, sequence.tokens)
        needed = -(-len(sequence.tokens) // self._block_size) - len(blocks)
        spare = pool.total // 100 if self.running else 0
        for block in blocks:
            pool.share(block)
        if not pool.fits(sequence.namespace, needed + spare):
            self.cache.release(blocks)
            return False
        sequence.blocks = blocks + pool.allocate(sequence.namespace, needed)
        sequence.keys = keys
        sequence.computed = len(blocks) * self._block_size
        if not sequence.admitted:
            sequence.admitted = True
            sequence.cached_tokens = sequence.computed
            sequence.charged = len(sequence.prompt) - sequence.computed
            self.cache.count(len(sequence.prompt), sequence.computed)
            self.fairness.charge_input(sequence.tenant, sequence.weight, sequence.charged)
        return True

    # endregion

    def _register_blocks(self, sequence: Sequence) -> None:
        size, keys = self._block_size, sequence.keys
        while (len(keys) + 1) * size <= sequence.computed:
            index = len(keys)
            parent = keys[-1] if keys else sequence.root
            tokens = sequence.tokens[index * size : (index + 1) * size]
            keys.append(self.cache.insert(sequence.blocks[index], parent, tokens))

    def _finish_reason(self, sequence: Sequence, token: int) -> FinishReason | None:
        params = sequence.params
        if token in params.stop_token_ids or (token in self._eos and not params.ignore_eos):
            return "stop"
        if len(sequence.output) >= params.max_tokens or len(sequence.tokens) >= self.limits.max_model_len:
            return "length"
        return None

    def _preempt(self, sequence: Sequence) -> None:
        """Back to the queue without blocks. The pin stays: the adapter is needed again soon."""
        self.preemptions += 1
        self._drop_blocks(sequence)
        self._backlog.enter(sequence.tenant)
        self.waiting.push(sequence)

    def _drop_blocks(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self.cache.release(sequence.blocks)
        sequence.blocks, sequence.keys, sequence.computed = [], [], 0

    def _finish(self, sequence: Sequence) -> None:
        del self._live[sequence.request_id]
        if sequence.state is State.RUNNING:
            # An abort in the middle of a prompt: what was never computed is not the tenant's to pay.
            if not sequence.output and (unused := len(sequence.prompt) - sequence.computed) > 0:
                self.fairness.charge_input(sequence.tenant, sequence.weight, -min(unused, sequence.charged))
            self._drop_blocks(sequence)
        else:
            self._backlog.leave(sequence.tenant)
            if sequence.state is State.WAITING:
                self.waiting.remove(sequence, State.FINISHED)
            elif sequence.adapter is not None:
                self.residency.unpark(sequence.adapter, sequence)
        sequence.state = State.FINISHED
        if sequence.pinned and sequence.adapter is not None:
            self.residency.release(sequence.adapter)
            sequence.pinned = False
        self.fairness.leave(sequence.tenant)
