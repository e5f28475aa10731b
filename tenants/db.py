"""The control plane's asynchronous connections: admission, settlement and authentication, beside Django's ORM."""

from __future__ import annotations

from django.conf import settings
from psycopg import AsyncConnection
from psycopg.rows import TupleRow
from psycopg_pool import AsyncConnectionPool

Pool = AsyncConnectionPool[AsyncConnection[TupleRow]]


def open_pool(*, min_size: int = 2, max_size: int = 8) -> Pool:
    """A pool on ``settings.DATABASE_DSN``, not opened yet: ``async with open_pool() as pool`` opens it.

    Connections are in autocommit: every call of this package is one statement, which is one transaction and one round
    trip. Never share a pool across a fork.
    """
    return AsyncConnectionPool(
        settings.DATABASE_DSN,
        kwargs={"autocommit": True, "application_name": "loraplex"},
        min_size=min_size,
        max_size=max_size,
        timeout=5.0,
        open=False,
    )
