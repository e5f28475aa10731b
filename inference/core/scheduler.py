"""Who computes what in the next step.

Continuous batching: a request joins and leaves between steps. Every step decodes all running sequences, then spends
what is left of the token budget on prompts, in chunks. When blocks run out, or when a tenant that has less than its
share waits for a place, somebody gives way (:mod:`~inference.core.victims`) and is computed again later, mostly from
the prefix cache.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as Seq
from itertools import count
from typing import Any

from inference.core import victims
from inference.core.admission import Admission
from inference.core.backlog import Backlog
from inference.core.batch import Batch, Progress
from inference.core.fairness import Fairness
from inference.core.limits import Limits
from inference.core.lookup import Lookup
from inference.core.portions import Portions
from inference.core.prefix_cache import PrefixCache
from inference.core.residency import Residency, Settled
from inference.core.sequence import Sequence, State
from inference.core.step import BASE_SLOT, Row, Sampled
from inference.core.waiting import WaitingQueue
from inference.errors import InferenceError, InvalidRequest
from inference.protocol import FinishReason


class Scheduler:
    """Owns the sequences, the blocks and the pins; never the device.

    One thread calls it: :meth:`add` and :meth:`abort` between steps, then :meth:`schedule`, then :meth:`postprocess`
    with the same batch. After :meth:`foresee` the next batch may be scheduled before that.
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
        self.waiting = WaitingQueue(self.fairness)
        self.running: list[Sequence] = []
        self.preemptions = 0
        self.portions = Portions(limits, self.fairness, cache.pool, cache.block_size)
        self._eos = eos_token_ids
        self._clock = clock
        self._live: dict[str, Sequence] = {}
        self._backlog = Backlog(limits)
        self._admission = Admission(
            limits,
            cache,
            residency,
            self.fairness,
            waiting=self.waiting,
            backlog=self._backlog,
            running=self.running,
            give_way=self._preempt,
        )
        self._arrivals = count()
        self._block_size = cache.block_size
        self._ended = 0.0  # the last step, by the clock

    @property
    def live(self) -> int:
        """Requests not finished yet."""
        return len(self._live)

    @property
    def queued(self) -> int:
        """Requests that wait: in the queue, or for their adapter."""
        return self._backlog.total

    def add(self, sequence: Sequence) -> Progress | None:
        """Queue a request; what became of another that had to leave a full queue for it.

        Raises :class:`InvalidRequest` if it can never run, :class:`Overloaded` if a queue is full.
        """
        if sequence.request_id in self._live:
            raise InvalidRequest("A request with this id is running")
        room = self.cache.pool.largest_request * self._block_size
        self.limits.check_fits(len(sequence.prompt), sequence.params.max_tokens, room=room)
        displaced = None if sequence.begun else self._make_place(sequence)
        sequence.arrival = next(self._arrivals)
        sequence.queued_at = self._clock()
        if self.limits.speculate_tokens and sequence.params.constraint is None:
            sequence.lookup = Lookup(self.limits.speculate_tokens)
        self._live[sequence.request_id] = sequence
        self.fairness.join(sequence.tenant, sequence.weight)
        self._backlog.enter(sequence.tenant)
        if sequence.matcher is None:
            self.waiting.push(sequence)
        else:
            self.waiting.park(sequence)
        return displaced

    def abort(self, request_id: str) -> Sequence | None:
        """Drop a request wherever it is; ``None`` if it has finished already."""
        sequence = self._live.get(request_id)
        if sequence is not None:
            self._finish(sequence)
        return sequence

    def compiled(self, sequence: Sequence, error: InferenceError | None) -> list[Progress]:
        """The request's constraint is ready, or cannot be: it goes into the queue, or ends."""
        if sequence.state is State.FINISHED:  # aborted meanwhile
            return []
        if error is None:
            self.waiting.push(sequence)
            return []
        self._finish(sequence)
        return [Progress(sequence, error=error)]

    def drop_broken(self) -> list[Progress]:
        """Running requests whose constraint cannot be followed any further end."""
        broken = [
            Progress(sequence, error=sequence.matcher.error)
            for sequence in self.running
            if sequence.matcher is not None and sequence.matcher.error is not None
        ]
        for progress in broken:
            self._finish(progress.sequence)
        return broken

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

    def yield_slots(self, turn: Callable[[Any], Any]) -> None:
        """Where adapters have stood in line for long: who waits with a pin, behind the first in that line, gives the
        pin back. It may wait for as long as better priorities or lighter tenants run, and its slot with it.

        :param turn: as :meth:`turn`, of whoever may stand in that line.
        """
        pinned = [sequence for sequence in self.waiting if sequence.pinned]
        first = self.residency.pressing(self._clock(), turn) if pinned else None
        if first is None:
            return
        for sequence in pinned:
            assert sequence.adapter is not None, "the base needs no pin"
            # What is being unloaded may not be had again: those who use it end first.
            if self.residency.is_resident(sequence.adapter) and self.turn(sequence) > first:
                sequence.slot, sequence.pinned = BASE_SLOT, False
                self.residency.release(sequence.adapter)

    def turn(self, sequence: Sequence) -> tuple[int, float, int]:
        """Orders who waits: least first."""
        return (sequence.priority, self.fairness.committed(sequence.tenant), sequence.arrival)

    def schedule(self) -> Batch:
        """The next step's rows; empty when nothing can run now."""
        now = self._clock()
        self.cache.pool.shares.tick(now)
        self.fairness.tick(now)
        preemptions = self.preemptions
        self._secure_blocks()
        # Blocks just taken from one request are not for a newcomer.
        started = self._admission.admit(now) if preemptions == self.preemptions else []
        batch = self.portions.fill(self.running)
        batch.started, batch.began = started, now
        return batch

    def foresee(self, batch: Batch) -> None:
        """Account for a launched step as far as it is known what it does: all but the tokens that it samples.

        :param batch: a :attr:`~inference.core.batch.Batch.foreseeable` one; the one before has been postprocessed when
            the next but one is scheduled.
        """
        batch.in_flight = True
        for index, (sequence, row) in enumerate(zip(batch.sequences, batch.rows, strict=True)):
            self._advance(sequence, len(row.tokens))
            if row.params is not None:
                sequence.expect()
                sequence.row = index

    def postprocess(self, batch: Batch, results: Seq[Sampled | None]) -> list[Progress]:
        """Account for one computed step; what each request gained."""
        now = self._clock()
        self.portions.learn(batch, now - max(batch.began, self._ended))
        self._ended = now
        progress = []
        for sequence, row, result in zip(batch.sequences, batch.rows, results, strict=True):
            if sequence.state is State.FINISHED or (batch.in_flight and row.params is None):
                continue  # the step before or somebody ended it meanwhile; or there is nothing left to find out
            if result is not None and result.broken:
                progress.append(self._break(sequence))
                continue
            if row.prompt_logprobs is not None:
                assert result is not None, "the runner scored no prompt where it was asked to"
                sequence.score(row.start, result.prompt_logprobs)
            if row.params is None:
                self._advance(sequence, len(row.tokens))
                continue
            assert result is not None, "the runner sampled no token where one was asked for"
            if row.mask is not None and not result.tokens:  # the mask was late
                self._advance(sequence, len(row.tokens) - 1)
                continue
            computed = 0 if batch.in_flight else len(row.tokens) - row.draft
            progress.append(self._gain(sequence, row, result, computed))
        return progress

    def _break(self, sequence: Sequence) -> Progress:
        """Its numbers are none: finite weights may overflow, which nothing that was checked before has to show."""
        self._finish(sequence)
        cause, param = ("the adapter", "model") if sequence.adapter is not None else ("this prompt", None)
        return Progress(sequence, error=InvalidRequest(f"What the model computes with {cause} is not finite", param))

    def _gain(self, sequence: Sequence, row: Row, result: Sampled, computed: int) -> Progress:
        """The sampled tokens up to the one that ends the text; those after it never happened.

        :param computed: positions that the step gave KV, right guesses aside, and that are not accounted for yet.
        """
        first, right = sequence.known == len(sequence.prompt), len(result.tokens) - 1
        guesses = row.tokens[len(row.tokens) - row.draft :]
        assert list(guesses[:right]) == result.tokens[:right], "the runner went on after a wrong guess"
        finish: FinishReason | None = None
        taken = 0
        while finish is None and taken < len(result.tokens):
            finish = sequence.gain(result.tokens[taken], self._eos, self.limits.max_model_len)
            taken += 1
        # Right guesses have their KV already; the last token taken gets it in the next step.
        self._advance(sequence, computed + taken - 1)
        self.portions.outcome(sequence, row.draft, right)
        self.fairness.charge_output(sequence.tenant, sequence.weight, taken)
        if finish is not None:
            self._finish(sequence)
        return Progress(
            sequence,
            result.tokens[:taken],
            finish,
            logprobs=None if result.logprobs is None else result.logprobs[:taken],
            prompt_logprobs=sequence.scores if first and sequence.params.prompt_logprobs is not None else None,
        )

    def _advance(self, sequence: Sequence, count: int) -> None:
        """So many more positions have KV."""
        sequence.computed += count
        new = min(sequence.computed, len(sequence.prompt)) - sequence.charged
        if new > 0:
            sequence.charged += new
            self.fairness.charge_input(sequence.tenant, sequence.weight, new)
        size = self._block_size
        while (sequence.chain.length + 1) * size <= min(sequence.computed, sequence.known):
            index = sequence.chain.length
            tokens = sequence.tokens[index * size : (index + 1) * size]
            sequence.chain = self.cache.insert(sequence.blocks[index], sequence.chain, tokens)

    def check_idle(self) -> None:
        """Raises ``AssertionError`` unless an idle core holds nothing: the conservation check."""
        self.cache.check()
        self.residency.check()
        assert not self.running, "idle with sequences running"
        assert not len(self.waiting), "idle with sequences waiting"
        assert not self.waiting.parked, "idle with sequences parked"
        assert self.cache.pool.in_use == 0, f"{self.cache.pool.in_use} blocks leaked"
        assert self.residency.pinned == 0, "a slot stayed pinned"
        self._backlog.check_empty()
        self.fairness.check_idle()

    def _secure_blocks(self) -> None:
        """A block for every decoding sequence's next position, best first; others' when none is left."""
        for sequence in list(self.running):
            pool = self.cache.pool
            while sequence.state is State.RUNNING and self._needs_block(sequence):
                if pool.fits(sequence.namespace, 1, sequence.weight):
                    sequence.blocks += pool.allocate(sequence.namespace, 1, sequence.weight)
                else:
                    self._preempt(victims.for_running(self.running, self.fairness))

    def _needs_block(self, sequence: Sequence) -> bool:
        return sequence.computed == len(sequence.blocks) * self._block_size and not sequence.complete

    def _make_place(self, newcomer: Sequence) -> Progress | None:
        """A place in the queue: a free one, or that of a request with less claim to it, which ends."""
        error = self._backlog.full_for(newcomer.tenant)
        if error is not None:
            leaves = self.waiting.expendable(newcomer, tenant=newcomer.tenant)
        else:
            error = self._backlog.full()
            if error is None:
                return None
            leaves = self.waiting.expendable(newcomer)
        if leaves is None:
            raise error
        self._finish(leaves)
        return Progress(leaves, error=error)

    def _preempt(self, sequence: Sequence) -> None:
        """Back to the queue without blocks. The pin stays: the adapter is needed again soon."""
        self.preemptions += 1
        sequence.preempted += 1
        self._drop_blocks(sequence)
        self._backlog.enter(sequence.tenant)
        self.waiting.push(sequence)

    def _drop_blocks(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self.cache.release(sequence.blocks)
        sequence.blocks, sequence.computed = [], 0

    def _finish(self, sequence: Sequence) -> None:
        del self._live[sequence.request_id]
        if sequence.matcher is not None:
            sequence.matcher.close()
        if sequence.state is State.RUNNING:
            self._drop_blocks(sequence)
        else:
            self._backlog.leave(sequence.tenant)
            if sequence.state is State.WAITING:
                self.waiting.remove(sequence, State.FINISHED)
            else:
                self.waiting.unpark(sequence)
                if sequence.adapter is not None:
                    self.residency.unpark(sequence.adapter, sequence)
        sequence.state = State.FINISHED
        if sequence.pinned and sequence.adapter is not None:
            self.residency.release(sequence.adapter)
            sequence.pinned = False
        if sequence.admitted:  # a prompt that was broken off: what was never computed is not the tenant's to pay
            self.fairness.promise(sequence.tenant, sequence.charged - len(sequence.prompt))
        self.fairness.leave(sequence.tenant)
