"""Usage by hour, made from the ledger: what charts read. Any of it can be made again at any time."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

from django.db import connection
from django.db.models import Min

from tenants.models import LedgerEntry, UsageMark

LATE = timedelta(minutes=10)
"""An entry becomes visible when its transaction commits, a little after the time it bears."""

HOUR = timedelta(hours=1)

STEP = timedelta(days=1)
"""Entries of so long a time are rolled up between two marks."""

MOST_SECONDS = 20
"""After so long no further step begins: what is left is for the next time."""

_TOUCHED = """
SELECT DISTINCT date_trunc('hour', admitted_at, 'UTC') FROM tenants_ledgerentry
 WHERE created_at >= %s AND created_at < %s ORDER BY 1
"""


def catch_up() -> int:
    """Make the hours again into which entries were written since the last time. Returns how many hours.

    Long ones, such as the first, come in steps, and end after :data:`MOST_SECONDS` seconds; what is done stays done.
    """
    hours, began = 0, time.monotonic()
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        [now] = cursor.fetchone()
        since = _begin() or now
        while True:
            until = min(since + STEP, now)
            # What bears a later time than now was written while this runs: the next time begins before it.
            cursor.execute(_TOUCHED, [since, until])
            touched = [row[0] for row in cursor.fetchall()]
            for hour in touched:
                cursor.execute("SELECT tenants_roll_up(%s, %s)", [hour, hour + HOUR])
            hours += len(touched)
            UsageMark.objects.update_or_create(pk=1, defaults={"covered_until": until})
            if until >= now or time.monotonic() - began > MOST_SECONDS:
                return hours
            since = until


def _begin() -> datetime | None:
    """From when on entries are not rolled up; ``None``: there is no entry yet."""
    mark = UsageMark.objects.filter(pk=1).first()
    if mark is not None:
        return mark.covered_until - LATE
    entries = LedgerEntry.objects.unscoped()
    first: datetime | None = entries.aggregate(first=Min("created_at"))["first"]
    return first


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
        while day <= now + timedelta(days=1):  # an account may have come to the next day: tenants/sql/standing.sql
            cursor.execute("SELECT tenants_roll_up(%s, %s)", [day, day + timedelta(days=1)])
            made += cursor.fetchone()[0]
            day += timedelta(days=1)
    if since is None:
        UsageMark.objects.update_or_create(pk=1, defaults={"covered_until": now})
    return made
