"""PostgreSQL's advisory locks for work that waits for workers: no transaction stays open meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import Error, connection


@contextmanager
def held(key: int) -> Iterator[bool]:
    """Whether the lock is this session's for the block; at once, without waiting. A process that dies loses it.

    :param key: a signed 64-bit number; one for each kind of work.
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_lock(%s)", [key])
        found = bool(cursor.fetchone()[0])
    try:
        yield found
    finally:
        if found:
            _release(key)


def _release(key: int) -> None:
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_unlock(%s)", [key])
    except Error:  # the session ends, and the lock with it
        connection.close()
