"""The one path of a generating request, whether it came over HTTP or WebSocket.

validate → resolve → render and tokenise → admit → route → stream → count → settle
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import ClassVar

import psycopg
from psycopg_pool import PoolTimeout
from uuid6 import uuid7

from gateway.asked import asked
from gateway.chunks import Chunks
from gateway.dispatch import Dispatch
from gateway.errors import ApiError, code_of, overloaded, shutting_down
from gateway.ratelimit import limits_of
from gateway.refusals import record
from gateway.renderers import check_scores
from gateway.schemas import AnyRequest, ChatRequest
from gateway.services import MOST_RUNNING, Services, lost
from inference.errors import WorkerUnavailable
from inference.protocol import Delta, Usage, WorkerTimings
from tenants import payload_log
from tenants.access import Access, ServedModel
from tenants.admission import Admitted, admit
from tenants.errors import Denied
from tenants.limit_state import LimitState
from tenants.settlement import Outcome, Timings, settle
from tenants.versions import is_version, version_of

logger = logging.getLogger(__name__)

SETTLE_PAUSES = (0.1, 0.5, 2.0)
"""Seconds between attempts to settle; after the last one the reaper does it at the last checkpoint."""

SETTLE_PATIENCE = 2.0
"""How long a finished answer waits for its settlement. Usually milliseconds: its client's next request then finds the
concurrency lease given back and the ledger up to date."""


STOPPED = "stopped_by_client"
"""Why a request was not completed that its client stopped or left."""


class Run:
    """One request of one caller. Driven by the task that iterates :meth:`deltas`; settled once, however that ends.

    :ivar prompt: token ids, once they are known.
    :ivar emitted: tokens received from the worker so far: what the caller pays for beside the prompt.
    :ivar cached: tokens of the prompt that came from the cache, once the worker has said so.
    :ivar limits: the caller's limits as admission or its refusal reported them, or as :meth:`look` found them.
    :ivar fingerprint: of what computes it: the worker's version and weights, the base model, the adapter.
    :ivar ended: nothing more will be generated; the settlement is under way or done.
    """

    keeps_payloads: ClassVar[bool] = True
    """What it asks and answers is stored where its tenant wants that."""

    def __init__(self, services: Services, access: Access, request: AnyRequest, *, priority: int = 0) -> None:
        self.request_id = uuid7()
        self.request = request
        self.started = time.monotonic()
        self.prompt: Sequence[int] = ()
        self.emitted = 0
        self.cached = 0
        self.fingerprint: str | None = None
        self.limits: LimitState | None = None
        self.admitted: Admitted | None = None
        self.ended = False
        self.usage: Usage | None = None
        self._services = services
        self._access = access
        self._priority = priority
        self._model: ServedModel | None = None
        self._dispatch = Dispatch(services, access, request, str(self.request_id))
        self._admitted_at: float | None = None
        self._first_token_at: float | None = None
        self._worker_timings: WorkerTimings | None = None
        self._kept: payload_log.Kept | None = None
        self._owner: asyncio.Task[object] | None = None
        self._stopped_with: ApiError | None = None
        self._settlement: asyncio.Task[None] | None = None
        self._lost = False

    @property
    def access(self) -> Access:
        """Whose request it is."""
        return self._access

    @property
    def model(self) -> ServedModel:
        """Raises :class:`~tenants.errors.ModelNotFound` when the key may not use it, or nobody has it."""
        if self._model is None:
            # The same user, or else the same request, always meets the same side of a canary.
            self._model = self._access.resolve(self.request.model, self.request.user or str(self.request_id))
        return self._model

    @property
    def durable(self) -> int:
        """Generated tokens that are charged if this process dies now."""
        return self.emitted

    def stop(self, error: ApiError) -> None:
        """End the run from outside; its client gets ``error``. Without effect once it has ended."""
        if self._stopped_with is None and not self.ended and self._owner is not None:
            self._stopped_with = error
            self._owner.cancel()

    def note(self, error: ApiError, *, recorded: bool) -> None:
        """Count an error. Refusals before the first token that admission did not see are recorded.

        :param recorded: admission has done so.
        """
        self._services.meters.refused(error.code)
        if not recorded and not self.emitted:
            record(self._services.pool, self._access, error, self.request_id, self.request.model)

    async def look(self) -> None:
        """Where no admission said so: how the caller's limits stand."""
        if self.limits is None:
            self.limits = await limits_of(self._services.pool, self._access)

    def take_stop(self) -> ApiError | None:
        """After a ``CancelledError`` in the owner: the error of :meth:`stop`, or ``None`` if others cancelled it."""
        task = asyncio.current_task()
        if self._stopped_with is None or task is None or task.uncancel() > 0:
            return None
        return self._stopped_with

    async def deltas(self) -> AsyncGenerator[Delta, None]:
        """Everything from admission to the last token. The first delta comes once the first token is there.

        Raises whatever :func:`~gateway.errors.error_of` knows. Leaving the iteration early cancels the request.
        """
        self._owner = asyncio.current_task()
        services = self._services
        if services.draining:
            raise shutting_down()
        if len(services.running) >= MOST_RUNNING:
            raise overloaded("The server is busy; try again shortly.")
        if is_version(self.request.model):
            self._model = await version_of(services.pool, self._access, self.request.model)
        self.prompt = await services.renderers.encode(self.model, self.request, self._access.tenant_id)
        check_scores(self.request, len(self.prompt))
        self.admitted = await self._admit()
        services.enter(self)
        if self._access.stores_payloads and self.keeps_payloads:
            self._kept = payload_log.Kept.of(asked(self.request))
        finish_reason: str | None = None
        try:
            async with aclosing(self._dispatch.deltas(self.model, self.prompt, self.admitted)) as upstream:
                async for delta in upstream:
                    await services.trusted()  # cancels this task where its lease was lost
                    if not self.emitted and delta.token_ids:
                        self._first_token_at = time.monotonic()
                        services.meters.first_token(self._first_token_at - self.started)
                        services.begun(self)
                    self.emitted += len(delta.token_ids)
                    if self._kept is not None:
                        self._kept.gained(delta.index, delta.text)
                    self.fingerprint = self.fingerprint or delta.fingerprint
                    finish_reason = delta.finish_reason or finish_reason
                    if finish_reason in {"abort", "error"}:
                        raise WorkerUnavailable(f"the worker ended the request: {finish_reason}")
                    self._hear(delta)
                    if delta.usage is not None:
                        self._settle("completed", finish_reason)
                    yield delta
            if not self.ended:
                raise WorkerUnavailable("the worker's stream ended without its last event")
        except (asyncio.CancelledError, GeneratorExit):
            self._settle("cancelled", STOPPED if self._stopped_with is None else self._stopped_with.code)
            raise
        except BaseException as error:
            self._settle("failed", code_of(error))
            raise

    async def chunks(self) -> Chunks:
        """Writes this run's answer; only once its prompt is known."""
        renderer = await self._services.renderers.of(self.model)
        return await Chunks.of_run(
            self.request_id, self.request, self.model, self.prompt, renderer, fingerprint=self.fingerprint
        )

    async def settled(self) -> Usage:
        """Usage of a completed run, once it is written down or :data:`SETTLE_PATIENCE` is over.

        Raises :class:`~gateway.errors.ApiError` where others had settled it, as one whose process is gone.
        """
        assert self._settlement is not None, "only after deltas() has ended"
        assert self.usage is not None, "set with the settlement"
        await asyncio.wait({self._settlement}, timeout=SETTLE_PATIENCE)
        if self._lost:
            raise lost()
        return self.usage

    async def _admit(self) -> Admitted:
        most = self.request.most_tokens
        admission = self._services.admit(
            admit(
                self._services.pool,
                request_id=self.request_id,
                access=self._access,
                model=self.model,
                prompt_tokens=len(self.prompt),
                max_tokens=max(most, 1) if most is not None and self.request.names_tokens else None,
                at_most=most,
                choices=self.request.choices,
                priority=self._priority,
            )
        )
        try:
            admitted: Admitted = await asyncio.shield(admission)
        except asyncio.CancelledError:
            # It may be admitted without anybody waiting for it any more: give back what it took.
            admission.add_done_callback(self._void)
            raise
        except Denied as denied:
            self.limits = denied.limits
            if denied.param == "messages" and not isinstance(self.request, ChatRequest):
                denied.param = "prompt"
            raise
        self.limits = admitted.limits
        self._admitted_at = time.monotonic()
        return admitted

    def _void(self, admission: asyncio.Task[Admitted]) -> None:
        if not admission.cancelled() and admission.exception() is None:
            self.admitted = admission.result()
            self._services.enter(self)
            self._settle("cancelled", STOPPED)

    def _hear(self, delta: Delta) -> None:
        """What the worker says of the request beside its tokens: some with the first ones, some with the last."""
        self._worker_timings = delta.timings or self._worker_timings
        cached = delta.cached_tokens if delta.usage is None else delta.usage.cached_tokens
        if cached is not None:
            self.cached = min(cached, len(self.prompt))  # whatever a worker says

    def _settle(self, outcome: Outcome, finish_reason: str | None) -> None:
        """Write down what was used, in a task of its own that no disconnect can cancel. Only the first call counts.

        :param finish_reason: the model's; of a request that was not completed the code of what ended it.

        A failure before the first token costs nothing, nor does a stop of ours, as at the end of this process; a client
        that leaves pays for the prompt a worker began with.
        What of it was cached is known from the first token on, however the request ends.
        """
        if self.ended or self.admitted is None:
            return
        self.ended = True
        self.usage = self._used(outcome)
        self._services.meters.ended(outcome, self.usage)
        self._settlement = self._services.spawn(self._write(outcome, finish_reason, self.usage))
        if self._kept is not None:
            payload_log.note(self._services.pool, self.request_id, self._access.tenant_id, self._kept)

    def _used(self, outcome: Outcome) -> Usage:
        """What is charged."""
        ours = outcome == "failed" or (self._stopped_with is not None and self._stopped_with.status >= 500)
        charged = outcome == "completed" or self.emitted > 0 or (self._dispatch.begun and not ours)
        prompt_tokens = len(self.prompt) if charged else 0
        return Usage(prompt_tokens, self.emitted, min(self.cached, prompt_tokens))

    @property
    def timings(self) -> Timings:
        """Where its time went so far; the worker's part comes with its first token."""
        first = None
        if self._first_token_at is not None and self._admitted_at is not None:
            first = round((self._first_token_at - self._admitted_at) * 1000)
        worker = self._worker_timings
        if worker is None:
            return Timings(first)
        return Timings(first, round(worker.queue_ms), round(worker.prefill_ms))

    async def _write(self, outcome: Outcome, finish_reason: str | None, usage: Usage) -> None:
        try:
            for pause in (*SETTLE_PAUSES, None):
                try:
                    ours = await settle(
                        self._services.pool,
                        request_id=self.request_id,
                        tenant_id=self._access.tenant_id,
                        prompt_tokens=usage.prompt_tokens,
                        cached_tokens=usage.cached_tokens,
                        completion_tokens=usage.completion_tokens,
                        outcome=outcome,
                        finish_reason=finish_reason,
                        timings=self.timings,
                    )
                    self._lost = not ours and pause == SETTLE_PAUSES[0]  # later it may be what an earlier try wrote
                    return
                except (psycopg.Error, PoolTimeout) as error:
                    if pause is None:
                        logger.error("request %s is left to the reaper: %s", self.request_id, error)
                        return
                    await asyncio.sleep(pause)
        finally:
            self._services.leave(self)
