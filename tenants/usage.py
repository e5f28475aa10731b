"""What a tenant used: roll-ups for the hours that are at rest, the ledger itself for those that entries still reach.

One statement, so one view of both: at any moment the sums equal the ledger's, however far the roll-ups have come. What
everybody used together comes from the roll-ups alone, a minute or so late: no ledger of a million rows is read for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from django.db import connection, transaction

from tenants.errors import Invalid
from tenants.models import Tenant
from tenants.rollups import LATE

Bucket = Literal["hour", "day", "month", "all"]
Part = Literal["model", "base_model", "adapter", "key", "member"]
AnyPart = Part | Literal["tenant"]

MOST_DAYS = 366
"""Between the ends of what may be asked for at once."""

MOST_ROWS = 10_000
"""Of :func:`used`. :func:`each_used` has no end."""

_AT_ONCE = 2000
"""Rows that :func:`each_used` holds."""

SUMS = ("requests", "not_completed", "prompt_tokens", "cached_tokens", "completion_tokens", "cost")


@dataclass(frozen=True, slots=True)
class _Named:
    """What rows are summed by: ids first, which are few, and only then their names.

    :param label: what people call it, where that is not its name.
    """

    name: str
    ids: tuple[str, ...]
    joins: tuple[str, ...]
    label: str = "''"


_BASE = "JOIN tenants_basemodel b ON b.id = g.base_model_id"
_ADAPTER = "LEFT JOIN tenants_adapter a ON a.id = g.adapter_id"
_OWNER = "LEFT JOIN tenants_tenant o ON o.id = a.tenant_id"

_PARTS: dict[str, _Named] = {
    "tenant": _Named("t.slug", ("tenant_id",), ("JOIN tenants_tenant t ON t.id = g.tenant_id",), "t.display_name"),
    "model": _Named(
        "CASE WHEN a.id IS NULL THEN b.name ELSE o.slug || '/' || a.name END",
        ("base_model_id", "adapter_id"),
        (_BASE, _ADAPTER, _OWNER),
    ),
    "base_model": _Named("b.name", ("base_model_id",), (_BASE,)),
    "adapter": _Named("o.slug || '/' || a.name", ("adapter_id",), (_ADAPTER, _OWNER)),
    "key": _Named("k.public_id", ("key_id",), ("JOIN tenants_apikey k ON k.id = g.key_id",), "k.name"),
    "member": _Named(
        "m.public_id::text",
        ("member_id",),
        ("LEFT JOIN tenants_member m ON m.id = g.member_id", "LEFT JOIN auth_user w ON w.id = m.user_id"),
        "w.username",
    ),
}

_OF_TENANT = """
WITH mark AS (
    SELECT coalesce((SELECT covered_until - %(late)s::interval FROM tenants_usagemark WHERE id = 1), '-infinity') AS at
), touched AS MATERIALIZED (
    SELECT DISTINCT date_trunc('hour', l.admitted_at, 'UTC') AS hour
      FROM tenants_ledgerentry l
     WHERE l.tenant_id = %(tenant)s AND l.admitted_at >= %(since)s AND l.admitted_at < %(until)s
       AND l.created_at >= (SELECT at FROM mark)
), used AS (
    SELECT u.hour, u.tenant_id, u.key_id, u.member_id, u.base_model_id, u.adapter_id, u.requests, u.not_completed,
           u.prompt_tokens, u.cached_tokens, u.completion_tokens, u.cost
      FROM tenants_usagehour u
     WHERE u.tenant_id = %(tenant)s AND u.hour >= %(since)s AND u.hour < %(until)s
       AND u.hour NOT IN (SELECT hour FROM touched)
    UNION ALL
    SELECT date_trunc('hour', l.admitted_at, 'UTC'), l.tenant_id, l.key_id, l.member_id, l.base_model_id, v.adapter_id,
           1, (l.outcome <> 'completed')::int, l.prompt_tokens, l.cached_tokens, l.completion_tokens, l.cost
      FROM tenants_ledgerentry l
      LEFT JOIN tenants_adapterversion v ON v.id = l.adapter_version_id
     WHERE l.tenant_id = %(tenant)s AND l.admitted_at >= %(since)s AND l.admitted_at < %(until)s
       AND l.created_at >= (SELECT min(hour) FROM touched)
       AND date_trunc('hour', l.admitted_at, 'UTC') IN (SELECT hour FROM touched)
)
"""
# The ledger is gone through once, from the first of those hours on, whatever the planner expects: joined to the hours,
# 0 of them but 23,000 expected, it was 4.8 million comparisons at 100,000 requests.

_OF_ALL = "WITH used AS (SELECT * FROM tenants_usagehour u WHERE u.hour >= %(since)s AND u.hour < %(until)s)"

_SUMMED = """
  FROM (SELECT {ids}{sums} FROM used s {grouped}) g {joins}
"""


def used(
    tenant: Tenant | None,
    since: datetime,
    until: datetime,
    *,
    bucket: Bucket = "day",
    by: Sequence[AnyPart] = ("model",),
) -> list[dict[str, Any]]:
    """Rows of ``at`` (the beginning of hour, day or month, UTC; ``None`` for ``all``), each of ``by``, and
    :data:`SUMS`; newest first. Money in micro-units. A request counts in the hour in which it was admitted, once it
    has ended.

    :param tenant: ``None``: everybody's, as far as it is rolled up. :param since: inclusive, :param until: exclusive;
        both on the hour.

    Raises :class:`~tenants.errors.Invalid` where more than :data:`MOST_ROWS` rows come out.
    """
    statement, names = _rows(bucket, by)
    rows = _fetch(tenant, f"{statement} LIMIT {MOST_ROWS + 1}", {"since": since, "until": until})
    if len(rows) > MOST_ROWS:
        raise Invalid(f"These are more than {MOST_ROWS} rows: ask for less time or fewer parts.", "from")
    return [dict(zip(names, row, strict=True)) for row in rows]


def each_used(
    tenant: Tenant | None,
    since: datetime,
    until: datetime,
    *,
    bucket: Bucket = "day",
    by: Sequence[AnyPart] = ("model",),
) -> Iterator[dict[str, Any]]:
    """The rows of :func:`used` one after the other, however many: the database keeps what is not fetched yet. Take them
    quickly, since its connection is taken, and what has been changed since then is kept, until the last one.
    """
    statement, names = _rows(bucket, by)
    with transaction.atomic():
        with connection.cursor() as settings:
            settings.execute("SET LOCAL cursor_tuple_fraction = 1")  # all rows are wanted, not the first ones soon
        with connection.chunked_cursor() as cursor:
            cursor.execute(*_whole(tenant, statement, {"since": since, "until": until}))
            while rows := cursor.fetchmany(_AT_ONCE):
                for row in rows:
                    yield dict(zip(names, row, strict=True))


def _rows(bucket: Bucket, by: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """The statement of :func:`used`, and its columns' names."""
    parts = [part for part in _PARTS if part in by]
    at = "NULL::timestamptz" if bucket == "all" else f"date_trunc('{bucket}', g.hour, 'UTC')"
    sums = ", ".join(f"sum(g.{name})::bigint" for name in SUMS)
    places = ", ".join(str(place + 1) for place in range(1 + len(parts)))
    statement = (
        f"SELECT {', '.join([at, *(_PARTS[part].name for part in parts)])}, {sums}"
        + _summed(parts, by_hour=bucket != "all")
        + f"GROUP BY {places} ORDER BY 1 DESC, {places}"
    )
    return statement, ("at", *parts, *SUMS)


@dataclass(frozen=True, slots=True)
class Dearest:
    """:param rows: ``name``, ``label`` and :data:`SUMS` of those that cost most.
    :param totals: :data:`SUMS` of all that were found, shown or not. :param count: how many were found.
    """

    rows: list[dict[str, Any]]
    totals: dict[str, int]
    count: int


def dearest(
    tenant: Tenant | None, since: datetime, until: datetime, part: AnyPart, *, most: int, named: str = ""
) -> Dearest:
    """What cost most, by one part, in one statement. The name is ``None`` for what has none: no adapter, no member;
    ``label`` is what people call it where that is something else: a key's name, a member's; ``""`` or ``None`` if not.

    :param named: only what has this in its name or label. Otherwise as :func:`used`.
    """
    name, label = _PARTS[part].name, _PARTS[part].label
    sums = [f"sum(g.{each})" for each in SUMS]
    columns = [
        name,
        label,
        *(f"{each}::bigint" for each in sums),
        *(f"(sum({each}::bigint) OVER ())::bigint" for each in sums),
    ]
    rows = _fetch(
        tenant,
        f"SELECT {', '.join(columns)}, count(*) OVER ()"
        + _summed([part], by_hour=False)
        + (f"WHERE {name} || ' ' || {label} ILIKE %(named)s " if named else "")
        + f"GROUP BY 1, 2 ORDER BY {3 + SUMS.index('cost')} DESC, {3 + SUMS.index('requests')} DESC, 1 LIMIT {most}",
        {"since": since, "until": until, "named": f"%{_literal(named)}%"},
    )
    end = 2 + len(SUMS)
    found = [dict(zip(("name", "label", *SUMS), row[:end], strict=True)) for row in rows]
    if not rows:
        return Dearest([], dict.fromkeys(SUMS, 0), 0)
    return Dearest(found, dict(zip(SUMS, rows[0][end:-1], strict=True)), rows[0][-1])


def _summed(parts: Sequence[str], *, by_hour: bool) -> str:
    ids = [*(["hour"] if by_hour else []), *dict.fromkeys(id for part in parts for id in _PARTS[part].ids)]
    return _SUMMED.format(
        ids="".join(f"s.{id}, " for id in ids),
        grouped=f"GROUP BY {', '.join(f's.{id}' for id in ids)}" if ids else "HAVING count(*) > 0",
        sums=", ".join(f"sum(s.{name})::bigint AS {name}" for name in SUMS),  # numeric costs more to sum again
        joins=" ".join(dict.fromkeys(join for part in parts for join in _PARTS[part].joins)),
    )


def _fetch(tenant: Tenant | None, statement: str, values: dict[str, Any]) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(*_whole(tenant, statement, values))
        rows: list[tuple[Any, ...]] = cursor.fetchall()
    return rows


def _whole(tenant: Tenant | None, statement: str, values: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    values |= {"tenant": tenant and tenant.pk, "late": f"{LATE.total_seconds():.0f} seconds"}
    return (_OF_ALL if tenant is None else _OF_TENANT) + statement, values


def _literal(text: str) -> str:
    """For ``ILIKE``: what has a meaning there means itself."""
    return re.sub(r"([\\%_])", r"\\\1", text)
