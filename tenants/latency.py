"""How long a tenant's own requests took: from the ledger and what was measured of each, never from workers' counters,
which hold everybody's."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.db import connection

from tenants.models import Tenant

NAMES = ("first_token", "inter_token", "queue", "whole")
SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
"""Percentiles by which latencies are told, here and of the platform: the share of all that took no longer."""

LOOKED_AT = 1000
"""Requests, the last ones: enough for a percentile, however many there were."""

_TAKEN = """
WITH taken AS (
    SELECT (r.first_token_ms / 1e3)::float8 AS first_token,
           (greatest(0, extract(epoch FROM l.created_at - l.admitted_at) - r.first_token_ms / 1e3)
               / nullif(l.completion_tokens - 1, 0))::float8 AS inter_token,
           (r.queue_ms / 1e3)::float8 AS queue,
           greatest(0, extract(epoch FROM l.created_at - l.admitted_at))::float8 AS whole
      FROM tenants_ledgerentry l JOIN tenants_inferencerequest r ON r.id = l.request_id
     WHERE l.tenant_id = %(tenant)s AND l.created_at >= %(since)s AND l.outcome = 'completed'
     ORDER BY l.created_at DESC LIMIT %(most)s
)
SELECT """
_FIGURE = "count({0}), percentile_cont(%(shares)s::float8[]) WITHIN GROUP (ORDER BY {0})"
_STATEMENT = _TAKEN + ", ".join(_FIGURE.format(name) for name in NAMES) + " FROM taken"


def latencies(tenant: Tenant, since: datetime) -> dict[str, dict[str, Any]]:
    """By :data:`NAMES`: ``count``, and the seconds that 50, 90 and 99 of a hundred completed requests did not exceed.

    ``inter_token`` is a request's mean: from its first token to its end, over the tokens that came after the first.
    ``None`` where nothing was measured.
    """
    values: dict[str, Any] = {"tenant": tenant.pk, "since": since, "most": LOOKED_AT, "shares": list(SHARES.values())}
    with connection.cursor() as cursor:
        cursor.execute(_STATEMENT, values)
        row = cursor.fetchone()
    found = {}
    for name, count, quantiles in zip(NAMES, row[::2], row[1::2], strict=True):
        found[name] = {"count": count, **dict(zip(SHARES, quantiles or [None] * len(SHARES), strict=True))}
    return found
