"""What a request used, written down once: settle, checkpoint and reap.

Each is one statement, hence one transaction. Lock order: see ``tenants/sql/admit.sql``.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import datetime
from typing import Literal, LiteralString
from uuid import UUID

from tenants.admission import LEASE
from tenants.db import Pool

Outcome = Literal["completed", "cancelled", "failed"]

logger = logging.getLogger(__name__)

_SETTLE = """
WITH settled AS (
    UPDATE tenants_inferencerequest
       SET state = 'settled', settled_at = clock_timestamp(),
           emitted_tokens = least(%(completion)s::integer, max_tokens)
     WHERE id = %(request)s AND state = 'running'
    RETURNING id, tenant_id, key_id, base_model_id, adapter_version_id, emitted_tokens, max_tokens, settled_at
), written AS (
    INSERT INTO tenants_ledgerentry
        (request_id, tenant_id, key_id, base_model_id, adapter_version_id, prompt_tokens, cached_tokens,
         completion_tokens, outcome, finish_reason, created_at)
    SELECT id, tenant_id, key_id, base_model_id, adapter_version_id, %(prompt)s, %(cached)s, emitted_tokens,
           %(outcome)s, %(finish)s, settled_at
      FROM settled
)
SELECT max_tokens FROM settled
"""


async def settle(
    pool: Pool,
    *,
    request_id: UUID,
    prompt_tokens: int,
    cached_tokens: int,
    completion_tokens: int,
    outcome: Outcome,
    finish_reason: str | None,
) -> bool:
    """Write the request's one ledger row and give its lease back; ``False``: it was settled before, nothing changed.

    ``prompt_tokens`` includes ``cached_tokens``. More completion tokens than were held are an error of the worker's:
    logged, and billed only up to the hold.
    """
    arguments = {
        "request": request_id,
        "prompt": prompt_tokens,
        "cached": min(cached_tokens, prompt_tokens),
        "completion": completion_tokens,
        "outcome": outcome,
        "finish": finish_reason or "",
    }
    async with pool.connection() as connection:
        row = await (await connection.execute(_SETTLE, arguments)).fetchone()
    if row is None:
        return False
    if completion_tokens > row[0]:
        logger.error("request %s generated %d tokens, held %d", request_id, completion_tokens, row[0])
    return True


# The rows are locked in order of id. A lease that has run out is not renewed: its place may be taken already.
_CHECKPOINT = """
WITH given AS (
    SELECT * FROM unnest(%(ids)s::uuid[], %(emitted)s::integer[]) AS g (id, emitted)
), mine AS (
    SELECT r.id, r.key_id, r.tenant_id, r.base_model_id FROM tenants_inferencerequest r
     WHERE r.id = ANY (%(ids)s::uuid[]) AND r.state = 'running' AND r.lease_expires_at > clock_timestamp()
     ORDER BY r.id FOR NO KEY UPDATE
), renewed AS (
    UPDATE tenants_inferencerequest r
       SET emitted_tokens = least(greatest(r.emitted_tokens, g.emitted), r.max_tokens),
           lease_expires_at = clock_timestamp() + %(lease)s
      FROM given g JOIN mine ON mine.id = g.id
     WHERE r.id = g.id
)
SELECT g.id FROM given g
 WHERE NOT EXISTS (
    SELECT 1 FROM mine
      JOIN tenants_apikey k ON k.id = mine.key_id
      JOIN tenants_tenant t ON t.id = mine.tenant_id
     WHERE mine.id = g.id AND t.state = 'active' AND k.revoked_at IS NULL
       AND (k.expires_at IS NULL OR k.expires_at > clock_timestamp())
 )
"""


async def checkpoint(pool: Pool, emitted: Mapping[UUID, int]) -> set[UUID]:
    """Say that these requests are alive and how many tokens each has generated; about once a second per process.

    Renews their leases and makes the counts durable: what a crash would bill. Returns those to stop: their key was
    revoked or has expired, their tenant was suspended, or their lease had run out.
    """
    if not emitted:
        return set()
    arguments = {"ids": list(emitted), "emitted": list(emitted.values()), "lease": LEASE}
    async with pool.connection() as connection:
        rows = await (await connection.execute(_CHECKPOINT, arguments)).fetchall()
    return {row[0] for row in rows}


# A request of which no token is known costs nothing, as a failure before the first token does: it may never have
# reached a worker. SKIP LOCKED: a row that somebody is settling is none of the reaper's business.
REAP: LiteralString = """
WITH expired AS (
    SELECT id FROM tenants_inferencerequest
     WHERE state = 'running' AND lease_expires_at <= coalesce(%(now)s, clock_timestamp())
     ORDER BY id LIMIT %(batch)s FOR UPDATE SKIP LOCKED
), settled AS (
    UPDATE tenants_inferencerequest r SET state = 'settled', settled_at = clock_timestamp()
      FROM expired WHERE r.id = expired.id
    RETURNING r.*
), written AS (
    INSERT INTO tenants_ledgerentry
        (request_id, tenant_id, key_id, base_model_id, adapter_version_id, prompt_tokens, cached_tokens,
         completion_tokens, outcome, finish_reason, created_at)
    SELECT id, tenant_id, key_id, base_model_id, adapter_version_id,
           CASE WHEN emitted_tokens > 0 THEN prompt_tokens ELSE 0 END, 0, emitted_tokens, 'abandoned', '', settled_at
      FROM settled
)
SELECT count(*) FROM settled
"""

_REAP_BATCH = 500


async def reap(pool: Pool, *, now: datetime | None = None) -> int:
    """Settle every request whose lease has run out, at its last durable count. Returns how many. Safe beside itself."""
    total: int = 0
    async with pool.connection() as connection:
        while True:
            row = await (await connection.execute(REAP, {"now": now, "batch": _REAP_BATCH})).fetchone()
            assert row is not None, "count(*) returns one row"
            total += row[0]
            if row[0] < _REAP_BATCH:
                return total
