"""The one path of a generating request, whether it came over HTTP or WebSocket.

validate → resolve → render and tokenise → admit → route → stream → count → settle
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import psycopg
from psycopg_pool import PoolTimeout
from uuid6 import uuid7

from fleet.dialects.base import Job
from gateway.chunks import FEW, Chunks
from gateway.errors import ApiError, error_of, overloaded, shutting_down
from gateway.renderers import check_scores, most_scored_tokens
from gateway.schemas import AnyRequest, ChatRequest
from gateway.services import MOST_RUNNING, Services
from inference.errors import EngineDead, InvalidRequest, Overloaded, WorkerUnavailable
from inference.protocol import Constraint, Delta, Usage, joined
from tenants.access import Access, ServedModel
from tenants.admission import Admitted, admit
from tenants.errors import Denied
from tenants.limit_state import LimitState
from tenants.settlement import Outcome, settle

logger = logging.getLogger(__name__)

MOST_WORKERS_TRIED = 2
SETTLE_PAUSES = (0.1, 0.5, 2.0)
"""Seconds between attempts to settle; after the last one the reaper does it at the last checkpoint."""

SETTLE_PATIENCE = 2.0
"""How long a finished answer waits for its settlement. Usually milliseconds: its client's next request then finds the
concurrency lease given back and the ledger up to date."""


class Run:
    """One request of one caller. Driven by the task that iterates :meth:`deltas`; settled once, however that ends.

    :ivar prompt: token ids, once they are known.
    :ivar emitted: tokens received from the worker so far: what the caller pays for beside the prompt.
    :ivar limits: the caller's limits as admission or its refusal reported them.
    :ivar fingerprint: of what computes it: the worker's version and weights, the base model, the adapter.
    :ivar ended: nothing more will be generated; the settlement is under way or done.
    """

    def __init__(self, services: Services, access: Access, request: AnyRequest) -> None:
        self.request_id = uuid7()
        self.request = request
        self.started = time.monotonic()
        self.prompt: Sequence[int] = ()
        self.emitted = 0
        self.fingerprint: str | None = None
        self.limits: LimitState | None = None
        self.admitted: Admitted | None = None
        self.ended = False
        self.usage: Usage | None = None
        self._services = services
        self._access = access
        self._model: ServedModel | None = None
        self._dispatched = False
        self._owner: asyncio.Task[object] | None = None
        self._stopped_with: ApiError | None = None
        self._settlement: asyncio.Task[None] | None = None

    @property
    def model(self) -> ServedModel:
        """Raises :class:`~tenants.errors.ModelNotFound` when the key may not use it, or nobody has it."""
        if self._model is None:
            self._model = self._access.resolve(self.request.model)
        return self._model

    def stop(self, error: ApiError) -> None:
        """End the run from outside; its client gets ``error``. Without effect once it has ended."""
        if self._stopped_with is None and not self.ended and self._owner is not None:
            self._stopped_with = error
            self._owner.cancel()

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
        self.prompt = await services.renderers.encode(self.model, self.request, self._access.tenant_id)
        check_scores(self.request, len(self.prompt))
        self.admitted = await self._admit()
        services.enter(self)
        finish_reason: str | None = None
        try:
            async with aclosing(self._upstream(self.prompt, self.admitted)) as upstream:
                async for delta in upstream:
                    self.emitted += len(delta.token_ids)
                    self.fingerprint = self.fingerprint or delta.fingerprint
                    finish_reason = delta.finish_reason or finish_reason
                    if finish_reason in {"abort", "error"}:
                        raise WorkerUnavailable(f"the worker ended the request: {finish_reason}")
                    if delta.usage is not None:
                        self._settle("completed", finish_reason, delta.usage.cached_tokens)
                    yield delta
            if not self.ended:
                raise WorkerUnavailable("the worker's stream ended without its last event")
        except (asyncio.CancelledError, GeneratorExit):
            self._settle("cancelled", finish_reason)
            raise
        except BaseException:
            self._settle("failed", finish_reason)
            raise

    async def chunks(self) -> Chunks:
        """Writes this run's answer; only once its prompt is known."""
        renderer = await self._services.renderers.of(self.model)
        return await Chunks.of_run(
            self.request_id, self.request, self.model, self.prompt, renderer, fingerprint=self.fingerprint
        )

    async def settled(self) -> Usage:
        """Usage of a completed run, once it is written down or :data:`SETTLE_PATIENCE` is over."""
        assert self._settlement is not None, "only after deltas() has ended"
        assert self.usage is not None, "set with the settlement"
        await asyncio.wait({self._settlement}, timeout=SETTLE_PATIENCE)
        return self.usage

    async def _admit(self) -> Admitted:
        most = self.request.most_tokens
        admission = self._services.spawn(
            admit(
                self._services.pool,
                request_id=self.request_id,
                access=self._access,
                model=self.model,
                prompt_tokens=len(self.prompt),
                max_tokens=None if most is None else max(most, 1),
                choices=self.request.choices,
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
        return admitted

    def _void(self, admission: asyncio.Task[Admitted]) -> None:
        if not admission.cancelled() and admission.exception() is None:
            self.admitted = admission.result()
            self._services.enter(self)
            self._settle("cancelled", None)

    async def _upstream(self, prompt: Sequence[int], admitted: Admitted) -> AsyncGenerator[Delta, None]:
        """Deltas of the best worker; of the next one when the first fails before its first token."""
        model = self.model
        most = 0 if self.request.most_tokens == 0 else admitted.max_tokens
        if (scored := most_scored_tokens(self.request)) is not None:
            most = min(most, scored)  # a maximum that the client did not name ends where the answer is full
        sampling = {**self.request.sampling(), "max_tokens": most}
        forced = await self._forced_call()
        if forced is not None:
            sampling["structured_outputs"] = {"json": forced.source}
            sampling.pop("stop", None)  # nothing but the call is written, and its end is known
            sampling.pop("stop_token_ids", None)
        job = Job(model.base, model.adapter_digest, prompt, sampling, admitted.grant)
        candidates = await self._services.router.candidates(
            fingerprint=model.fingerprint,
            digest=model.adapter_digest,
            namespace=str(self._access.tenant_id),
            prompt=prompt,
        )
        able = [replica for replica in candidates if replica.refused(job) is None]
        tried = (able or candidates)[:MOST_WORKERS_TRIED]
        for replica in tried:
            begun = False
            try:
                self._dispatched = True
                async with aclosing(replica.generate(job)) as deltas:
                    async for delta in deltas:
                        begun = True
                        yield delta
                return
            except InvalidRequest as error:
                if forced is None or error.param != "structured_outputs.json":
                    raise
                raise InvalidRequest(str(error).replace(error.param, forced.field), forced.field) from error
            except (WorkerUnavailable, EngineDead, Overloaded) as error:
                if begun or replica is tried[-1]:
                    raise
                logger.warning("request %s: worker %s failed, trying another: %s", self.request_id, replica.name, error)

    async def _forced_call(self) -> Constraint | None:
        """What the answer has to be where a tool has to be called."""
        use = self.request.tool_use
        if use is None or not use.forced:
            return None
        renderer = await self._services.renderers.of(self.model)
        return use.constraint(renderer.tool_style.arguments_key)

    def _settle(self, outcome: Outcome, finish_reason: str | None, cached: int = 0) -> None:
        """Write down what was used, in a task of its own that no disconnect can cancel. Only the first call counts.

        A failure before the first token costs nothing; a client that leaves pays for the prompt a worker began with.
        """
        if self.ended or self.admitted is None:
            return
        self.ended = True
        charged = {"completed": True, "cancelled": self._dispatched, "failed": self.emitted > 0}[outcome]
        prompt_tokens = len(self.prompt) if charged else 0
        self.usage = Usage(prompt_tokens, self.emitted, min(cached, prompt_tokens))
        self._settlement = self._services.spawn(self._write(outcome, finish_reason, self.usage))

    async def _write(self, outcome: Outcome, finish_reason: str | None, usage: Usage) -> None:
        try:
            for pause in (*SETTLE_PAUSES, None):
                try:
                    await settle(
                        self._services.pool,
                        request_id=self.request_id,
                        prompt_tokens=usage.prompt_tokens,
                        cached_tokens=usage.cached_tokens,
                        completion_tokens=usage.completion_tokens,
                        outcome=outcome,
                        finish_reason=finish_reason,
                    )
                    return
                except (psycopg.Error, PoolTimeout) as error:
                    if pause is None:
                        logger.error("request %s is left to the reaper: %s", self.request_id, error)
                        return
                    await asyncio.sleep(pause)
        finally:
            self._services.leave(self)


class ClientGone(Exception):
    """The client left, or reads nothing: what ends a run without anybody to tell."""


class Transport(ABC):
    """Where the chunks of a run go. Blocks while the client reads too slowly. Whatever it raises ends the run;
    :class:`ClientGone` ends it in silence.
    """

    @abstractmethod
    async def send(self, run: Run, chunks: Sequence[bytes]) -> None:
        """JSON objects in order; the first call opens the answer."""

    @abstractmethod
    async def finish(self, run: Run) -> None: ...

    @abstractmethod
    async def fail(self, run: Run, error: ApiError) -> None:
        """The run ended with ``error``, before or after the first chunk."""


async def serve(run: Run, transport: Transport, *, stream: bool) -> None:
    """Drive ``run`` to its end over ``transport``.

    Raises ``CancelledError`` when the caller's task is cancelled: the client is gone, nothing more is sent.
    """
    try:
        await (_stream if stream else _whole)(run, transport)
    except asyncio.CancelledError:
        error = run.take_stop()
        if error is None:
            raise
        with contextlib.suppress(ClientGone):
            await transport.fail(run, error)
    except ClientGone:
        return
    except Exception as error:
        with contextlib.suppress(ClientGone):
            await transport.fail(run, error_of(error))


async def _stream(run: Run, transport: Transport) -> None:
    chunks: Chunks | None = None
    async with aclosing(run.deltas()) as deltas:
        async for delta in deltas:
            if chunks is None:
                chunks = await run.chunks()
            if len(delta.prompt_logprobs or ()) > FEW:
                payloads = await asyncio.to_thread(chunks.of, delta)
            else:
                payloads = chunks.of(delta)
            if payloads:
                await transport.send(run, payloads)
    assert chunks is not None, "deltas() yields or raises"
    usage = await run.settled()
    last = chunks.last(usage)
    if last:
        await transport.send(run, last)
    await transport.finish(run)


async def _whole(run: Run, transport: Transport) -> None:
    parts: list[list[Delta]] = [[] for _ in range(run.request.choices)]
    async with aclosing(run.deltas()) as deltas:
        async for delta in deltas:
            parts[delta.index].append(delta)
    usage = await run.settled()
    chunks = await run.chunks()
    choices = [joined(deltas) for deltas in parts]
    scored = any(choice.logprobs or choice.prompt_logprobs for choice in choices)
    answer = await asyncio.to_thread(chunks.whole, choices, usage) if scored else chunks.whole(choices, usage)
    await transport.send(run, [answer])
    await transport.finish(run)
