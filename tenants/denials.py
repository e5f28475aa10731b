"""Why were requests refused? Counted in memory, written in one statement about once a second.

A refused request must not cost the database a write: a client in a tight loop would be a write amplifier. So refusals
of one reason (tenant, key, code, limit) share a row an hour, with the last of them in full. A process that is killed
loses the counts of its last second.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID
from weakref import WeakKeyDictionary

import psycopg
from psycopg_pool import PoolTimeout
from uuid6 import uuid7

from tenants.access import Access, ServedModel
from tenants.db import Pool
from tenants.errors import Denied
from tenants.write_behind import WriteBehind

logger = logging.getLogger(__name__)

FLUSH_SECONDS = 1.0
MOST_REASONS = 2000
"""Different reasons kept between two flushes; refusals for further ones are counted, not named."""


@dataclass(frozen=True, slots=True, order=True)
class _Reason:
    tenant: UUID
    hour: datetime
    key: int
    code: str
    limit: str
    subject: str


@dataclass(slots=True)
class _Seen:
    count: int
    at: datetime
    request_id: UUID
    model: str
    message: str


# Sorted by the caller, so that two processes lock the same rows in the same order. Keys that are gone are left out.
_WRITE = """
INSERT INTO tenants_denial AS d
    (tenant_id, hour, key_id, code, "limit", subject, count, last_at, last_request_id, last_model, last_message)
SELECT n.tenant, n.hour, n.key, n.code, n."limit", n.subject, n.count, n.at, n.request, n.model, n.message
  FROM unnest(%s::uuid[], %s::timestamptz[], %s::bigint[], %s::text[], %s::text[], %s::text[], %s::bigint[],
              %s::timestamptz[], %s::uuid[], %s::text[], %s::text[])
       WITH ORDINALITY AS n (tenant, hour, key, code, "limit", subject, count, at, request, model, message, place)
  JOIN tenants_apikey k ON k.id = n.key AND k.tenant_id = n.tenant
 ORDER BY n.place
ON CONFLICT (tenant_id, hour, key_id, code, "limit", subject) DO UPDATE
   SET count = d.count + excluded.count, last_at = excluded.last_at, last_request_id = excluded.last_request_id,
       last_model = excluded.last_model, last_message = excluded.last_message
"""


class _Log(WriteBehind):
    """Refusals of the requests that share one pool."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[_Reason, _Seen] = {}
        self.unnamed = 0

    def add(self, reason: _Reason, seen: _Seen) -> None:
        found = self.seen.get(reason)
        if found is not None:
            seen.count += found.count
        elif len(self.seen) >= MOST_REASONS:
            self.unnamed += seen.count
            return
        self.seen[reason] = seen

    async def write(self, pool: Pool) -> None:
        batch, self.seen = self.seen, {}
        if self.unnamed:
            logger.warning("%d refusals for further reasons are not recorded", self.unnamed)
            self.unnamed = 0
        if not batch:
            return
        rows = [
            (r.tenant, r.hour, r.key, r.code, r.limit, r.subject, s.count, s.at, s.request_id, s.model, s.message)
            for r, s in sorted(batch.items(), key=lambda item: item[0])
        ]
        try:
            async with pool.connection() as connection:
                await connection.execute(_WRITE, [list(column) for column in zip(*rows, strict=True)])
        except (psycopg.Error, PoolTimeout) as error:
            logger.warning("refusals cannot be recorded: %s", error)
            if isinstance(error, psycopg.OperationalError):  # the database is away: with the next refusal again
                for reason, seen in batch.items():
                    self.add(reason, seen)


_logs: WeakKeyDictionary[Pool, _Log] = WeakKeyDictionary()


def note(pool: Pool, request_id: UUID, access: Access, model: ServedModel, error: Denied) -> None:
    """Count what admission refused; see :func:`note_refusal`."""
    note_refusal(
        pool,
        access.tenant_id,
        access.key_id,
        error.code,
        error.message,
        limit=error.limit or "",
        subject=error.subject or "",
        model=model.id,
        request_id=request_id,
    )


def note_refusal(
    pool: Pool,
    tenant_id: UUID,
    key_id: int,
    code: str,
    message: str,
    *,
    limit: str = "",
    subject: str = "",
    model: str = "",
    request_id: UUID | None = None,
) -> None:
    """Count a refusal; what is counted is written within :data:`FLUSH_SECONDS`. Never waits, never raises.

    :param code: one of a few: rows are counted by it. :param model: as the client called it.
    :param request_id: ``None`` where it was refused before it had one.
    """
    log = _logs.setdefault(pool, _Log())
    now = datetime.now(UTC)
    hour = now.replace(minute=0, second=0, microsecond=0)
    reason = _Reason(tenant_id, hour, key_id, code, limit, subject)
    request_id = request_id or UUID(str(uuid7()))
    log.add(reason, _Seen(1, now, request_id, _storable(model, 200), _storable(message, 500)))
    log.soon(pool, FLUSH_SECONDS)


_told: ContextVar[list[tuple[UUID, int, str, str]] | None] = ContextVar("told", default=None)


@contextmanager
def collected(pool: Pool) -> Iterator[None]:
    """What :func:`tell` is told in this context, in whichever of its threads, is counted at the end: here, on the
    pool's event loop.
    """
    told: list[tuple[UUID, int, str, str]] = []
    before = _told.set(told)
    try:
        yield
    finally:
        _told.reset(before)
        for tenant_id, key_id, code, message in told:
            note_refusal(pool, tenant_id, key_id, code, message)


def tell(tenant_id: UUID, key_id: int, code: str, message: str) -> None:
    """As :func:`note_refusal`, from where there is neither pool nor loop. Without :func:`collected` nobody counts."""
    told = _told.get()
    if told is not None:
        told.append((tenant_id, key_id, code, message))


def _storable(text: str, most: int) -> str:
    """What a client wrote, without what PostgreSQL's texts cannot hold: one refusal must not keep others from being
    written.
    """
    return text[:most].replace("\0", "\ufffd").encode("utf-8", "replace").decode()


async def flush(pool: Pool) -> None:
    """Write what is counted, and wait for what is being written: before the pool is closed."""
    log = _logs.get(pool)
    if log is not None:
        await log.flush(pool)
