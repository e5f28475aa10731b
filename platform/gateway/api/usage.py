from __future__ import annotations

from datetime import date

from django.http import HttpRequest
from ninja import Query, Router, Schema

from gateway.api.auth import Key, access, services

router = Router(tags=["usage"], auth=Key())

_BY_DAY = """
SELECT (l.created_at AT TIME ZONE 'UTC')::date, CASE WHEN a.id IS NULL THEN b.name ELSE t.slug || '/' || a.name END,
       count(*), sum(l.prompt_tokens), sum(l.cached_tokens), sum(l.completion_tokens)
  FROM tenants_ledgerentry l
  JOIN tenants_basemodel b ON b.id = l.base_model_id
  LEFT JOIN tenants_adapterversion v ON v.id = l.adapter_version_id
  LEFT JOIN tenants_adapter a ON a.id = v.adapter_id
  LEFT JOIN tenants_tenant t ON t.id = a.tenant_id
 WHERE l.tenant_id = %s AND l.created_at >= date_trunc('day', now(), 'UTC') - make_interval(days => %s - 1)
 GROUP BY 1, 2 ORDER BY 1 DESC, 2
"""


class UsageRow(Schema):
    """What one model used on one day (UTC). ``prompt_tokens`` includes ``cached_tokens``."""

    day: date
    model: str
    requests: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


class Usage(Schema):
    tenant: str
    days: int
    data: list[UsageRow]


@router.get("/api/usage", response=Usage, summary="What the key's tenant used, by day and model")
async def get_usage(request: HttpRequest, days: int = Query(30, ge=1, le=366)) -> Usage:  # type: ignore[type-arg]
    caller = access(request)
    async with services(request).pool.connection() as connection:
        rows = await (await connection.execute(_BY_DAY, (caller.tenant_id, days))).fetchall()
    fields = ("day", "model", "requests", "prompt_tokens", "cached_tokens", "completion_tokens")
    data = [UsageRow(**dict(zip(fields, row, strict=True))) for row in rows]
    return Usage(tenant=caller.tenant, days=days, data=data)
