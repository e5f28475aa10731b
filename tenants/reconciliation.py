"""Does everything add up? The ledger against accounts, requests, prices and roll-ups, at one moment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.db import connection, transaction

from tenants import audit
from tenants.actors import Actor
from tenants.models import Tenant

OVERDUE_SECONDS = 60
"""A lease that ran out is reaped within seconds; after this long nobody reaps."""

MOST_FINDINGS = 100

# Each query yields what is wrong: the tenant's name, what it is about, and what was found.
_CHECKS = {
    "an account differs from its ledger and running requests": """
        SELECT t.slug, a.subject, json_build_object('account', to_json(x.*), 'derived', to_json(d.*))::text
          FROM tenants_account a
          JOIN tenants_tenant t ON t.id = a.tenant_id
         CROSS JOIN LATERAL (
            SELECT a.day_tokens, a.month_tokens, a.month_cost, a.held_tokens, a.held_cost, a.settled_count,
                   a.settled_tokens, a.settled_cost
         ) x
         CROSS JOIN LATERAL tenants_derived(a.tenant_id, a.subject, a.day, a.month) d
         WHERE (x.*) IS DISTINCT FROM (d.*) AND (%(tenant)s::uuid IS NULL OR t.id = %(tenant)s)
    """,
    "a tenant with requests has no account": """
        SELECT t.slug, 'tenant', 'no account'
          FROM tenants_tenant t
         WHERE EXISTS (SELECT 1 FROM tenants_inferencerequest r WHERE r.tenant_id = t.id)
           AND NOT EXISTS (SELECT 1 FROM tenants_account a WHERE a.tenant_id = t.id AND a.subject = 'tenant')
           AND (%(tenant)s::uuid IS NULL OR t.id = %(tenant)s)
    """,
    "a settled request has no ledger entry": """
        SELECT t.slug, r.id::text, 'settled at ' || r.settled_at
          FROM tenants_inferencerequest r JOIN tenants_tenant t ON t.id = r.tenant_id
         WHERE r.state = 'settled' AND NOT EXISTS (SELECT 1 FROM tenants_ledgerentry l WHERE l.request_id = r.id)
           AND (%(tenant)s::uuid IS NULL OR t.id = %(tenant)s)
    """,
    "a ledger entry disagrees with its request": """
        SELECT t.slug, r.id::text, to_json(l.*)::text
          FROM tenants_ledgerentry l
          JOIN tenants_inferencerequest r ON r.id = l.request_id
          JOIN tenants_tenant t ON t.id = l.tenant_id
         WHERE (r.state <> 'settled'
                OR (r.tenant_id, r.key_id, r.base_model_id, r.admitted_at)
                   <> (l.tenant_id, l.key_id, l.base_model_id, l.admitted_at)
                OR (r.member_id, r.adapter_version_id, r.price_id)
                   IS DISTINCT FROM (l.member_id, l.adapter_version_id, l.price_id)
                OR l.prompt_tokens > r.prompt_tokens OR l.completion_tokens > r.max_tokens OR l.cost > r.held_cost)
           AND (%(tenant)s::uuid IS NULL OR t.id = %(tenant)s)
    """,
    "a cost is not what its price says": """
        SELECT t.slug, l.request_id::text,
               l.cost || ' instead of '
               || tenants_cost(p, l.prompt_tokens, l.cached_tokens, l.completion_tokens)
          FROM tenants_ledgerentry l
          JOIN tenants_tenant t ON t.id = l.tenant_id
          LEFT JOIN tenants_price p ON p.id = l.price_id
         WHERE l.cost <> tenants_cost(p, l.prompt_tokens, l.cached_tokens, l.completion_tokens)
           AND (%(tenant)s::uuid IS NULL OR t.id = %(tenant)s)
    """,
    "a request holds on although its lease ran out": """
        SELECT t.slug, r.id::text, 'lease until ' || r.lease_expires_at
          FROM tenants_inferencerequest r JOIN tenants_tenant t ON t.id = r.tenant_id
         WHERE r.state = 'running' AND r.lease_expires_at < clock_timestamp() - make_interval(secs => %(overdue)s)
           AND (%(tenant)s::uuid IS NULL OR t.id = %(tenant)s)
    """,
    # Hours into which entries were still written after the last roll-up are not complete yet, and left out.
    "a roll-up differs from the ledger": """
        WITH mark AS (SELECT covered_until FROM tenants_usagemark WHERE id = 1),
        open AS (
            SELECT DISTINCT date_trunc('hour', l.admitted_at, 'UTC') AS hour
              FROM tenants_ledgerentry l WHERE l.created_at >= (SELECT covered_until FROM mark)
        ), booked AS (
            SELECT l.tenant_id, date_trunc('hour', l.admitted_at, 'UTC') AS hour, count(*) AS requests,
                   sum(l.prompt_tokens) AS prompt, sum(l.completion_tokens) AS completion, sum(l.cost) AS cost
              FROM tenants_ledgerentry l
             WHERE EXISTS (SELECT 1 FROM mark) AND (%(tenant)s::uuid IS NULL OR l.tenant_id = %(tenant)s)
             GROUP BY 1, 2
        ), rolled AS (
            SELECT u.tenant_id, u.hour, sum(u.requests) AS requests, sum(u.prompt_tokens) AS prompt,
                   sum(u.completion_tokens) AS completion, sum(u.cost) AS cost
              FROM tenants_usagehour u
             WHERE %(tenant)s::uuid IS NULL OR u.tenant_id = %(tenant)s
             GROUP BY 1, 2
        )
        SELECT t.slug, hour::text, json_build_object('ledger', to_json(b.*), 'rollup', to_json(u.*))::text
          FROM booked b FULL JOIN rolled u USING (tenant_id, hour) JOIN tenants_tenant t ON t.id = tenant_id
         WHERE (b.requests, b.prompt, b.completion, b.cost)
               IS DISTINCT FROM (u.requests, u.prompt, u.completion, u.cost)
           AND hour NOT IN (SELECT o.hour FROM open o)
    """,
}

_TOTALS = """
SELECT (SELECT count(*) FROM tenants_inferencerequest r WHERE %(tenant)s::uuid IS NULL OR r.tenant_id = %(tenant)s),
       (SELECT count(*) FROM tenants_inferencerequest r
         WHERE r.state = 'running' AND (%(tenant)s::uuid IS NULL OR r.tenant_id = %(tenant)s)),
       count(*), coalesce(sum(l.prompt_tokens), 0), coalesce(sum(l.completion_tokens), 0), coalesce(sum(l.cost), 0)
  FROM tenants_ledgerentry l WHERE %(tenant)s::uuid IS NULL OR l.tenant_id = %(tenant)s
"""


@dataclass(frozen=True, slots=True)
class Finding:
    """:param about: an account's subject, a request's id or an hour."""

    check: str
    tenant: str
    about: str
    found: str


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """What was looked at, and what does not add up: at most :data:`MOST_FINDINGS` of each kind.

    ``requests = entries + running`` when all is well. ``cost`` in micro-units.
    """

    findings: list[Finding]
    requests: int
    running: int
    entries: int
    prompt_tokens: int
    completion_tokens: int
    cost: int

    @property
    def ok(self) -> bool:
        return not self.findings and self.requests == self.entries + self.running


def reconcile(tenant: Tenant | None = None) -> Reconciliation:
    """Compare everything of one tenant, or of all, in one snapshot; admissions go on meanwhile."""
    arguments: dict[str, Any] = {"tenant": tenant and tenant.pk, "overdue": OVERDUE_SECONDS}
    with transaction.atomic(durable=True), connection.cursor() as cursor:
        cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        cursor.execute(_TOTALS, arguments)
        totals = [int(number) for number in cursor.fetchone()]
        findings = []
        for check, query in _CHECKS.items():
            cursor.execute(f"{query} ORDER BY 1, 2 LIMIT {MOST_FINDINGS}", arguments)
            findings += [Finding(check, *row) for row in cursor.fetchall()]
    return Reconciliation(findings, *totals)


def repair(actor: Actor, tenant: Tenant) -> None:
    """Set the tenant's accounts to what ledger and running requests say; the ledger itself is never touched."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT tenants_rederive(%s)", [tenant.pk])
        audit.record(actor, "accounts.rederived", tenant.slug, tenant=tenant)
