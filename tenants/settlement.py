"""What a request used, written down once: settle, checkpoint and reap.

Each is one transaction; the rules are in ``tenants/sql/settle.sql``.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Literal
from uuid import UUID

from tenants.admission import LEASE
from tenants.db import Pool
from tenants.durability import on_disk
from tenants.together import ask

Outcome = Literal["completed", "cancelled", "failed"]

StopReason = Literal["revoked", "suspended", "lost"]
"""Why a running request has to end: its key is not allowed any more; its tenant is not; or its lease ran out (then
others may have taken its place, and the reaper settles it), or it is settled or unknown.
"""


@dataclass(frozen=True, slots=True)
class Timings:
    """Where a request's time went, in milliseconds; ``None``: not known.

    :param first_token_ms: from admission to the first token, as the gateway saw it; a worker that failed before counts.
    :param queue_ms: in the worker's queue. :param prefill_ms: from there to the first token. Only workers that say so.
    """

    first_token_ms: int | None = None
    queue_ms: int | None = None
    prefill_ms: int | None = None


UNTIMED = Timings()

logger = logging.getLogger(__name__)


async def settle(
    pool: Pool,
    *,
    request_id: UUID,
    tenant_id: UUID | None = None,
    prompt_tokens: int,
    cached_tokens: int,
    completion_tokens: int,
    outcome: Outcome,
    finish_reason: str | None,
    timings: Timings = UNTIMED,
) -> bool:
    """Write the request's one ledger entry and give the rest of its hold and its lease back.

    ``False``: it was settled before, nothing changed. ``prompt_tokens`` includes ``cached_tokens``;
    ``completion_tokens`` is over all choices. No tokens at all make a void. More completion tokens than were held are
    an error of the worker's: logged, and billed only up to the hold.

    :param tenant_id: the request's, where it is known: what waits for its account then waits together.
    """
    asked = {
        "request": request_id,
        "prompt": prompt_tokens,
        "cached": min(cached_tokens, prompt_tokens),
        "completion": completion_tokens,
        "outcome": outcome,
        "finish": (finish_reason or "")[:32],  # what the column holds; a code may be a worker's own
        "first_token": timings.first_token_ms,
        "queue": timings.queue_ms,
        "prefill": timings.prefill_ms,
    }
    answer = await ask(pool, "tenants_settle_together", tenant_id or request_id, asked)
    await on_disk(pool)  # also what somebody else settled: whoever asks again may not have heard that it is
    held: int | None = answer["held"]
    if held is None:
        return False
    if completion_tokens > held:
        logger.error("request %s generated %d tokens, held %d", request_id, completion_tokens, held)
    return True


async def void(pool: Pool, request_id: UUID, *, outcome: Outcome = "cancelled") -> bool:
    """Give a request's whole hold back: it never began. ``False``: it was settled before."""
    return await settle(
        pool,
        request_id=request_id,
        prompt_tokens=0,
        cached_tokens=0,
        completion_tokens=0,
        outcome=outcome,
        finish_reason=None,
    )


async def checkpoint(
    pool: Pool,
    emitted: Mapping[UUID, int],
    *,
    cached: Mapping[UUID, int] = MappingProxyType({}),
    now: datetime | None = None,
) -> dict[UUID, StopReason]:
    """Say that these requests are alive and how many tokens each has generated; about once a second per process.

    :param cached: tokens of the prompt that came from the cache, of those whose worker has said so.

    Renews their leases and makes the counts durable: what a crash would bill. Returns those that have to end, and why.

    A lease with less than a second left is not renewed any more: somebody may be about to take its place.
    """
    if not emitted:
        return {}
    found = [cached.get(request_id, 0) for request_id in emitted]
    arguments = (list(emitted), list(emitted.values()), found, LEASE, now)
    call = "CALL tenants_checkpoint(%s, %s, %s, %s, %s, NULL)"
    async with pool.connection() as connection:
        row = await (await connection.execute(call, arguments)).fetchone()
    assert row is not None, "a call with an OUT parameter returns one row"
    return {UUID(request_id): reason for request_id, reason in row[0].items()}


_REAP_BATCH = 200


async def reap(pool: Pool, *, now: datetime | None = None) -> int:
    """Settle every request whose lease has run out, at its last durable count. Returns how many. Safe beside itself."""
    total: int = 0
    async with pool.connection() as connection:
        while True:
            row = await (await connection.execute("CALL tenants_reap(%s, %s, NULL)", (now, _REAP_BATCH))).fetchone()
            assert row is not None, "a call with an OUT parameter returns one row"
            total += row[0]
            if row[0] < _REAP_BATCH:
                return total
