"""One line of a batch: a live request in every respect, but that it yields to others and costs nothing until its answer
is kept.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal
from uuid import UUID

import orjson
import psycopg
from psycopg_pool import PoolTimeout
from uuid6 import uuid7

from gateway.batches.lines import Line
from gateway.chat import SETTLE_PAUSES, Run
from gateway.errors import ApiError
from gateway.services import Services, lost
from gateway.transport import Transport
from inference.protocol import Usage
from tenants.access import Access
from tenants.admission import Admitted
from tenants.db import Pool
from tenants.limit_state import LimitState
from tenants.models import Batch
from tenants.settlement import UNTIMED, Outcome

logger = logging.getLogger(__name__)

PRIORITY = 10
"""Of the grant: behind every live request, on the worker's queue and in its batch."""

Verdict = Literal["recorded", "known", "lost"]

_FINISH = """
CALL tenants_finish_line(%(batch)s, %(line)s, %(answered)s, %(body)s, %(request)s, %(prompt)s, %(cached)s,
                         %(completion)s, %(finish)s, %(first_token)s, %(queue)s, %(prefill)s, NULL)
"""


class LineRun(Run):
    """A run that is charged by :meth:`record`, together with keeping its answer, or not at all.

    Until then its lease is renewed and no token of it is durable: whoever dies leaves a request that the reaper makes
    void, and the line runs again.
    """

    keeps_payloads: ClassVar[bool] = False  # the batch's files hold them

    def __init__(
        self, services: Services, access: Access, line: Line, learn: Callable[[LimitState | None], None]
    ) -> None:
        """:param learn: told of the caller's limits as admission, or its refusal, reports them."""
        super().__init__(services, access, line.request, priority=PRIORITY)
        self._learn = learn
        self._finish_reason: str | None = None
        self._open = False  # completed, neither recorded nor void

    @property
    def durable(self) -> int:
        return 0

    def _used(self, outcome: Outcome) -> Usage:
        return super()._used(outcome) if outcome == "completed" else Usage(0, 0, 0)

    async def _admit(self) -> Admitted:
        try:
            return await super()._admit()
        finally:
            self._learn(self.limits)

    async def _write(self, outcome: Outcome, finish_reason: str | None, usage: Usage) -> None:
        if outcome != "completed":
            await super()._write(outcome, finish_reason, usage)
            return
        self._open = True
        self._finish_reason = finish_reason

    async def settled(self) -> Usage:
        """Its usage: it is charged once the answer that holds it is kept."""
        assert self._settlement is not None, "only after deltas() has ended"
        assert self.usage is not None, "set with the settlement"
        await self._settlement
        return self.usage

    async def record(self, batch: Batch, line: Line, body: bytes) -> Verdict:
        """Keep the answer and settle the request. Raises ``psycopg`` errors where the database cannot be asked."""
        assert self.usage is not None, "only of a completed run"
        verdict = await _finish(
            self._services.pool,
            batch,
            line.number,
            body,
            request=self,
            usage=self.usage,
            finish_reason=self._finish_reason,
        )
        if verdict != "lost":
            self._open = False
            self._services.leave(self)
        return verdict

    def close(self) -> None:
        """The last act of whoever drove it: what is completed and not recorded becomes void."""
        if self._open:
            self._open = False
            self._services.spawn(super()._write("cancelled", None, Usage(0, 0, 0)))


class LineTransport(Transport):
    """Keeps the answer of one line.

    :ivar done: the line is finished, by this run or another one.
    :ivar error: why it is not.
    """

    def __init__(self, batch: Batch, line: Line) -> None:
        self._batch = batch
        self._line = line
        self.done = False
        self.error: ApiError | None = None

    async def send(self, run: Run, chunks: Sequence[bytes]) -> None:
        assert isinstance(run, LineRun), "made by the same hands"
        (answer,) = chunks
        body = output_line(self._line.custom_id, str(run.request_id), 200, answer)
        verdict = await run.record(self._batch, self._line, body)
        self.done = verdict != "lost"
        if not self.done:
            self.error = lost()

    async def finish(self, run: Run) -> None:
        pass

    async def fail(self, run: Run, error: ApiError) -> None:
        self.error = error


async def record_error(
    pool: Pool, batch: Batch, number: int, *, custom_id: str, error: ApiError, request_id: UUID | None = None
) -> Verdict:
    """The line has failed for good. :param request_id: of its last try, which is void."""
    body = output_line(custom_id, str(request_id or uuid7()), error.status, error.payload())
    return await _finish(pool, batch, number, body)


async def _finish(
    pool: Pool,
    batch: Batch,
    number: int,
    body: bytes,
    *,
    request: LineRun | None = None,
    usage: Usage | None = None,
    finish_reason: str | None = None,
) -> Verdict:
    """Tries again for some seconds; what was committed although the connection broke is then ``known``."""
    used = usage or Usage(0, 0, 0)
    timings = UNTIMED if request is None else request.timings
    arguments = {
        "batch": batch.pk,
        "line": number,
        "answered": request is not None,
        "body": body,
        "request": None if request is None else request.request_id,
        "prompt": used.prompt_tokens,
        "cached": used.cached_tokens,
        "completion": used.completion_tokens,
        "finish": finish_reason or "",
        "first_token": timings.first_token_ms,
        "queue": timings.queue_ms,
        "prefill": timings.prefill_ms,
    }
    for pause in (*SETTLE_PAUSES, None):
        try:
            async with pool.connection() as connection:
                row = await (await connection.execute(_FINISH, arguments)).fetchone()
            assert row is not None, "a call with an OUT parameter returns one row"
            verdict: Verdict = row[0]
            return verdict
        except (psycopg.OperationalError, PoolTimeout):
            if pause is None:
                raise
            await asyncio.sleep(pause)
    raise AssertionError("the last try returns or raises")


def output_line(custom_id: str, request_id: str, status: int, body: bytes) -> bytes:
    """As OpenAI writes it, without the line's end."""
    response = {"status_code": status, "request_id": request_id, "body": orjson.Fragment(body)}
    return _line(custom_id, response, None)


def expired_line(custom_id: str) -> bytes:
    message = "This request could not be executed before the completion window expired."
    return _line(custom_id, None, {"code": "batch_expired", "message": message})


def _line(custom_id: str, response: dict[str, Any] | None, error: dict[str, Any] | None) -> bytes:
    found = {"id": f"batch_req_{uuid7().hex}", "custom_id": custom_id, "response": response, "error": error}
    return orjson.dumps(found)
