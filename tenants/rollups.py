"""Usage by hour, made from the ledger: what charts read. Any of it can be made again at any time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from django.db import connection
from django.db.models import Min

from tenants.models import LedgerEntry, UsageMark

LATE = timedelta(minutes=10)
"""An entry becomes visible when its transaction commits, a little after the time it bears."""

HOUR = timedelta(hours=1)

_TOUCHED = """
SELECT DISTINCT date_trunc('hour', admitted_at, 'UTC') FROM tenants_ledgerentry WHERE created_at >= %s ORDER BY 1
"""


def catch_up() -> int:
    """Make the hours again into which entries were written since the last time. Returns how many hours."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        [now] = cursor.fetchone()
        mark = UsageMark.objects.filter(pk=1).first()
        since = datetime(1970, 1, 1, tzinfo=UTC) if mark is None else mark.covered_until - LATE
        cursor.execute(_TOUCHED, [since])
        hours = [row[0] for row in cursor.fetchall()]
        for hour in hours:
            cursor.execute("SELECT tenants_roll_up(%s, %s)", [hour, hour + HOUR])
    UsageMark.objects.update_or_create(pk=1, defaults={"covered_until": now})
    return len(hours)


def rebuild(since: datetime | None = None) -> int:
    """Make every hour from ``since`` on again, a day at a time; ``None``: all. Returns the number of rows made."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        [now] = cursor.fetchone()
        first = LedgerEntry.objects.unscoped().aggregate(first=Min("admitted_at"))["first"] or now
        day = (since or first).astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        made = 0
        if since is None:  # what lies before the first entry has no ledger behind it
            cursor.execute("SELECT tenants_roll_up('-infinity', %s)", [day])
        while day <= now:
            cursor.execute("SELECT tenants_roll_up(%s, %s)", [day, day + timedelta(days=1)])
            made += cursor.fetchone()[0]
            day += timedelta(days=1)
    if since is None:
        UsageMark.objects.update_or_create(pk=1, defaults={"covered_until": now})
    return made
