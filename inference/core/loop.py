"""The core's main loop."""

from __future__ import annotations

import logging
import queue
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from inference.core import reports
from inference.core.adapter_source import AdapterSource
from inference.core.batch import Batch, Progress
from inference.core.blocks import NOBODY
from inference.core.flight import Flight
from inference.core.host_tier import HostTier
from inference.core.limits import Limits
from inference.core.messages import (
    Abort,
    DeclarePrefix,
    LoadAdapter,
    Message,
    Probe,
    Reply,
    Stats,
    Step,
    Submit,
    UnloadAdapter,
    WithdrawPrefix,
    values,
)
from inference.core.prefix_cache import PrefixCache
from inference.core.residency import Residency
from inference.core.scheduler import Scheduler
from inference.core.sequence import Sequence
from inference.core.step import Row, Runner
from inference.errors import InferenceError, InvalidRequest
from inference.protocol import SamplingParams

if TYPE_CHECKING:
    from inference.constraints.constraints import Constraints

log = logging.getLogger(__name__)

PARKED_POLL_SECONDS = 0.05
"""How often an otherwise idle core looks whether a slot has come free."""


@dataclass(frozen=True, slots=True)
class _Call:
    """An operator's load, waiting beside the requests."""

    number: int


class Stop:
    """In the inbox: the front is gone; leave the loop."""


class Loop:
    """``schedule → launch → postprocess`` until the front goes away.

    Owns the device: everything that touches the runner happens in the thread that calls :meth:`run_forever`, except
    reading an adapter from disk.

    :param base: fingerprint of the base model, part of every cache key.
    :param send: hands a message to the front; must not block.
    :param constraints: makes what texts are constrained with, given what wakes the loop; without it, requests that
        ask for that are refused.
    """

    def __init__(
        self,
        runner: Runner,
        limits: Limits,
        *,
        base: str,
        store: Path,
        send: Callable[[Message], None],
        constraints: Callable[[Callable[[], None]], Constraints] | None = None,
    ) -> None:
        self.inbox: queue.SimpleQueue[Message | Stop | None] = queue.SimpleQueue()
        self._runner = runner
        self._send = send
        self._source = AdapterSource(store, runner.read_adapter)
        self._reader = ThreadPoolExecutor(max_workers=2, thread_name_prefix="adapter-reader")
        self._host = HostTier(self._source.read, runner.adapter_bytes, limits.host_adapter_bytes, self._reader)
        self._residency = Residency(
            runner.num_slots,
            fetch=self._host.fetch,
            load=runner.load_adapter,
            clear=runner.clear_slot,
            wake=lambda: self.inbox.put(None),
        )
        cache = PrefixCache(
            runner.num_blocks, runner.block_size, base=base, kv_dtype=runner.kv_dtype, rules=limits.shares
        )
        self.scheduler = Scheduler(limits, cache, self._residency, eos_token_ids=runner.eos_token_ids)
        self._flight = Flight(runner, self.scheduler.foresee)
        self._constraints = constraints(lambda: self.inbox.put(None)) if constraints is not None else None
        self._stalled = False  # every running request waits for its mask
        self._failed: list[Progress] = []
        self._steps = 0
        self._changed = False  # since the last report, without a step
        self._stopped = False

    def run_forever(self) -> None:
        """Returns when the front has gone; raises what the device raises."""
        self._send(reports.ready(self._runner, self.scheduler.limits.max_model_len))
        while self._receive():
            batch = self.scheduler.schedule()
            self._stalled = not (batch.rows or self._flight) and bool(self.scheduler.running)
            for ended, results in self._flight.advance(batch):
                self._report(ended, self.scheduler.postprocess(ended, results))
        if self._constraints is not None:
            self._constraints.close()
        self._reader.shutdown(wait=False, cancel_futures=True)

    def _receive(self) -> bool:
        """Take in what has arrived; waits only while there is nothing to compute. False: leave."""
        idle = not (self.scheduler.running or self.scheduler.waiting or self._changed or self._flight)
        message: Message | Stop | None = None
        try:
            if idle:
                message = self.inbox.get(timeout=PARKED_POLL_SECONDS if self._residency.has_work else None)
            elif self._stalled:
                message = self.inbox.get(timeout=PARKED_POLL_SECONDS)
            while True:
                self._handle(message)
                message = self.inbox.get_nowait()
        except queue.Empty:
            pass
        if not self._stopped and self._residency.has_work:
            self._poll_residency()
        if not self._stopped and self._constraints is not None:
            self._poll_constraints(self._constraints)
        return not self._stopped

    def _handle(self, message: Message | Stop | None) -> None:
        match message:
            case Submit():
                self._submit(message)
            case Abort(request_id):
                self._changed |= self.scheduler.abort(request_id) is not None
            case LoadAdapter():
                self._load(message)
            case UnloadAdapter(call, digest):
                self._answer(call, lambda: self._unload(digest))
            case DeclarePrefix(call, name, adapter, tokens):
                self._answer(call, lambda: self.scheduler.cache.declare(name, adapter, tokens))
            case WithdrawPrefix(call, name):
                self._answer(call, lambda: self.scheduler.cache.public.withdraw(name))
            case Probe(call):
                self._answer(call, self._probe)
            case Stop():
                self._stopped = True
            case _:
                pass

    def _submit(self, message: Submit) -> None:
        sequence = Sequence(
            message.request_id,
            message.prompt,
            SamplingParams.from_wire(message.params),
            message.seed,
            message.tenant,
            message.namespace,
            message.adapter,
            message.priority,
            message.weight,
            message.begun,
        )
        try:
            failed = self._add(sequence)
        except InferenceError as error:
            failed = Progress(sequence, error=error)
        else:
            if message.adapter is not None and not self._residency.is_resident(message.adapter):
                self._host.prefetch(message.adapter)
        if failed is not None:
            self._failed.append(failed)
            self._changed = True

    def _add(self, sequence: Sequence) -> Progress | None:
        """Queue it, or have its constraint compiled first. What left the queue for it."""
        params, constraints = sequence.params, self._constraints
        if params.constraint is None:
            return self.scheduler.add(sequence)
        if constraints is None:
            field = params.constraint.field
            raise InvalidRequest(f"{field}: this worker cannot constrain this model's texts", field)
        sequence.matcher = constraints.matcher(params.constraint, params)
        left = self.scheduler.add(sequence)
        constraints.begin(sequence, sequence.matcher, tenant=sequence.tenant, namespace=sequence.namespace)
        return left

    def _poll_constraints(self, constraints: Constraints) -> None:
        failed = [p for sequence, error in constraints.poll() for p in self.scheduler.compiled(sequence, error)]
        failed += self.scheduler.drop_broken()
        self._failed += failed
        self._changed |= bool(failed)

    def _load(self, message: LoadAdapter) -> None:
        digest = message.digest
        if self._residency.is_resident(digest):
            self._send(Reply(message.call, "InvalidRequest", f"The adapter {digest} is already loaded", "lora_name"))
            return
        if message.path is not None:
            self._source.place(digest, Path(message.path))
        else:
            self._displace(digest)
        self._residency.park(digest, _Call(message.call), time.monotonic())

    def _unload(self, digest: str) -> None:
        self._displace(digest)  # first: the adapter may have lost its slot meanwhile, and unloading it raises then
        self._residency.unload(digest)
        self._changed = True

    def _displace(self, digest: str) -> None:
        """From the store again. What an operator's own directory held is read anew: what comes next may be another."""
        if self._source.displace(digest):
            self._host.forget(digest)

    def _poll_residency(self) -> None:
        self.scheduler.yield_slots(self._turn)
        for settled in self._residency.poll(time.monotonic(), self._turn):
            calls = [waiter for waiter in settled.waiters if isinstance(waiter, _Call)]
            settled.waiters = [waiter for waiter in settled.waiters if not isinstance(waiter, _Call)]
            self._failed += self.scheduler.settle(settled)
            for call in calls:
                if settled.error is None:
                    self._residency.release(settled.digest)
                self._send(reports.reply(call.number, settled.error))
            self._changed = True

    def _turn(self, waiter: Sequence | _Call) -> tuple[float, float, int]:
        """Operators' loads come first."""
        return self.scheduler.turn(waiter) if isinstance(waiter, Sequence) else (float("-inf"), 0.0, waiter.number)

    def _probe(self) -> None:
        """One real forward step in a block of its own; nothing to do while sequences are running."""
        pool = self.scheduler.cache.pool
        if self.scheduler.running or not pool.fits(NOBODY, 1):
            return
        (block,) = pool.allocate(NOBODY)
        try:
            row = Row([0], 0, [block], params=SamplingParams(max_tokens=1, temperature=0.0), prompt=[0])
            (result,) = self._runner.launch([row]).results()
        finally:
            pool.release(block, keep=False)
        tokens = [] if result is None else result.tokens
        if not tokens or not all(0 <= token < self._runner.vocab_size for token in tokens):
            raise InferenceError(f"the forward step gave no token of the vocabulary but {result}")

    def _answer(self, call: int, action: Callable[[], None]) -> None:
        try:
            action()
        except InferenceError as error:
            self._send(reports.reply(call, error))
        else:
            self._send(Reply(call))

    def _report(self, batch: Batch, progress: list[Progress]) -> None:
        computed = bool(batch.rows)
        self._steps += computed
        if not (computed or self._changed):
            return
        gained = [reports.gained(p) for p in progress if p.error is None]
        ended = [*self._failed, *progress]
        failed = [reports.failed(p.sequence.request_id, p.error) for p in ended if p.error is not None]
        started = [[sequence.request_id, sequence.waited] for sequence in batch.started]
        self._failed, self._changed = [], False
        self._send(Step(gained, failed, started, values(self._stats())))

    def _stats(self) -> Stats:
        scheduler = self.scheduler
        return Stats(
            running=len(scheduler.running),
            waiting=scheduler.queued,
            blocks_in_use=scheduler.cache.pool.in_use,
            blocks_cached=scheduler.cache.pool.cached,
            prefix_queries=scheduler.cache.queries,
            prefix_hits=scheduler.cache.hits,
            preemptions=scheduler.preemptions,
            steps=self._steps,
            resident=self._residency.resident,
            running_adapters=sorted({seq.adapter for seq in scheduler.running if seq.adapter is not None}),
            waiting_adapters=self._residency.wanted,
            adapter_loads=list(self._residency.loads),
            adapter_load_seconds=self._residency.load_seconds,
            adapter_failures=self._residency.failures,
            adapter_evictions=self._residency.evictions,
            host_adapters=len(self._host),
            host_bytes=self._host.num_bytes,
            host_hits=self._host.hits,
            host_reads=self._host.reads,
            guessed=self.scheduler.portions.guessed,
            guessed_right=self.scheduler.portions.right,
        )
