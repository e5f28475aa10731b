"""Where a tenant's limits stand now, and those of one member or key: what is used, what is left."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.db import connection
from psycopg.rows import dict_row

from tenants.db import Pool
from tenants.limit_state import UNIT, LimitState
from tenants.models import ApiKey, Limits, Member, Tenant

_STANDING = """
SELECT s.*, a.held_tokens, a.held_cost, a.settled_count, a.settled_tokens, a.settled_cost
  FROM tenants_standing(%s, %s, %s, clock_timestamp()) s LEFT JOIN tenants_account a ON a.id = s.account_id
"""

_LIMITS = "SELECT * FROM tenants_standing(%s, %s, %s, clock_timestamp())"


def standing(tenant: Tenant, member: Member | None = None, key: ApiKey | None = None) -> list[dict[str, Any]]:
    """One object a subject: the tenant, then the member and the key as far as they have limits.

    ``limits``: ``{name: {"limit", "used", "left"}}`` of every limit in force; ``used`` is absent for the limits of a
    single request, and more than ``limit`` where more was used before the limit was set. Requests and tokens per minute
    count what is not refilled yet: after a limit was raised, the difference is refilled too. Money in micro-units.
    """
    with connection.cursor() as cursor:
        cursor.execute(_STANDING, [tenant.pk, member.pk if member else None, key.pk if key else None])
        names = [column.name for column in cursor.description]
        return [_subject(dict(zip(names, row, strict=True))) for row in cursor.fetchall()]


async def limits_now(pool: Pool, tenant_id: UUID, member_id: int | None, key_id: int | None) -> LimitState:
    """The limits that an admission for these would go by; takes nothing and waits for no other request.

    Raises ``psycopg.Error`` or ``psycopg_pool.PoolTimeout`` when the database cannot be asked.
    """
    async with pool.connection() as connection, connection.cursor(row_factory=dict_row) as cursor:
        await cursor.execute(_LIMITS, (tenant_id, member_id, key_id))
        return LimitState.of_standing(await cursor.fetchall())


def _subject(row: dict[str, Any]) -> dict[str, Any]:
    used = {
        "requests_per_minute": _drawn(row["requests_per_minute"], row["requests_units"]),
        "tokens_per_minute": _drawn(row["tokens_per_minute"], row["tokens_units"]),
        "max_concurrent": row["running"],
        "tokens_per_day": row["day_tokens"],
        "tokens_per_month": row["month_tokens"],
        "budget_soft": row["month_cost"],
        "budget_hard": row["month_cost"],
    }
    limits: dict[str, dict[str, int]] = {}
    for name in Limits.NAMES:
        limit = row[name]
        if limit is None:
            continue
        limits[name] = {"limit": limit}
        if name in used:
            spent = used[name] or 0
            limits[name] |= {"used": spent, "left": max(limit - spent, 0)}
    sums = ("held_tokens", "held_cost", "settled_count", "settled_tokens", "settled_cost")
    return {
        "subject": row["subject"],
        "limits": limits,
        "month_tokens": row["month_tokens"],
        "month_cost": row["month_cost"],
        **{name: row[name] or 0 for name in sums},
    }


def _drawn(limit: int | None, units: int | None) -> int | None:
    """What is not in the bucket, a part counted as a whole."""
    return None if limit is None or units is None else limit - units // UNIT
