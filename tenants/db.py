"""The control plane's asynchronous connections: admission, settlement and authentication, beside Django's ORM."""

from __future__ import annotations

from django.conf import settings
from psycopg import AsyncConnection
from psycopg.rows import TupleRow
from psycopg_pool import AsyncConnectionPool

STATEMENT_SECONDS = 10
"""No statement here runs longer: admissions wait at most 5 s for their turn, a checkpoint of thousands takes less."""

SILENCE_SECONDS = 10
"""A server that acknowledges nothing for so long counts as gone, whatever the kernel would still wait for."""

Pool = AsyncConnectionPool[AsyncConnection[TupleRow]]


def open_pool(*, min_size: int = 2, max_size: int = 8) -> Pool:
    """A pool on ``settings.DATABASE_DSN``, not opened yet: ``async with open_pool() as pool`` opens it.

    Connections are in autocommit: every call of this package is one statement, which is one transaction and one round
    trip. Never share a pool across a fork.
    """
    return AsyncConnectionPool(
        settings.DATABASE_DSN,
        kwargs={
            "autocommit": True,
            "application_name": "loraplex",
            "connect_timeout": 5,
            "keepalives_idle": SILENCE_SECONDS,
            "keepalives_interval": 2,
            "keepalives_count": 3,
            "tcp_user_timeout": SILENCE_SECONDS * 1000,
        },
        configure=_configure,
        min_size=min_size,
        max_size=max_size,
        timeout=5.0,
        open=False,
    )


async def _configure(connection: AsyncConnection[TupleRow]) -> None:
    # Not in the connection's options: PgBouncer refuses those.
    await connection.execute(f"SET statement_timeout = '{STATEMENT_SECONDS}s'")
