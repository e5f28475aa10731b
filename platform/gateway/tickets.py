from __future__ import annotations

import secrets
from hashlib import sha256

from django.db import connection as own_connection

from tenants.access import Access
from tenants.db import Pool
from tenants.errors import InvalidKey
from tenants.visits import LASTS, Visit

LIFETIME_SECONDS = 30

# Whoever issues a ticket also sweeps some that nobody came for.
_ISSUE = """
WITH swept AS (
    DELETE FROM gateway_wsticket WHERE digest IN (
        SELECT digest FROM gateway_wsticket WHERE expires_at < now() LIMIT 100 FOR UPDATE SKIP LOCKED)
)
INSERT INTO gateway_wsticket (digest, key_id, expires_at, session, password)
VALUES (%s, %s, now() + make_interval(secs => %s), %s, %s)
"""

_REDEEM = f"""
WITH v AS (DELETE FROM gateway_wsticket WHERE digest = %s RETURNING key_id, expires_at, session, password)
SELECT v.key_id, v.session, v.password FROM v JOIN tenants_apikey k ON k.id = v.key_id
 WHERE v.expires_at > now() AND (k.playground_of_id IS NULL OR EXISTS ({LASTS}))
"""  # noqa: S608 - only the text of another statement is put in


async def issue(pool: Pool, access: Access) -> str:
    """A ticket that opens one WebSocket within :data:`LIFETIME_SECONDS`; only its hash is kept."""
    ticket = secrets.token_urlsafe(32)
    async with pool.connection() as connection:
        await connection.execute(_ISSUE, (_digest(ticket), access.key_id, LIFETIME_SECONDS, None, None))
    return ticket


def issue_within(key_id: int, visit: Visit) -> str:
    """As :func:`issue`, in Django's transaction: for a playground key that it may have made."""
    ticket = secrets.token_urlsafe(32)
    with own_connection.cursor() as cursor:
        cursor.execute(_ISSUE, (_digest(ticket), key_id, LIFETIME_SECONDS, visit.session, visit.password))
    return ticket


async def redeem(pool: Pool, ticket: str) -> tuple[int, Visit | None]:
    """The id of the key behind the ticket, which is void from now on, and the visit of whoever is signed in.

    Raises :class:`~tenants.errors.InvalidKey` when it is unknown, used or too old, or the visit has ended.
    """
    async with pool.connection() as connection:
        row = await (await connection.execute(_REDEEM, (_digest(ticket),))).fetchone()
    if row is None:
        raise InvalidKey("The ticket is unknown, used or expired.")
    key_id, session, password = row
    return key_id, None if session is None else Visit(session, bytes(password))


def _digest(ticket: str) -> bytes:
    return sha256(ticket.encode()).digest()
