from __future__ import annotations

import secrets
from hashlib import sha256

from tenants.access import Access
from tenants.db import Pool
from tenants.errors import InvalidKey

LIFETIME_SECONDS = 30

# Whoever issues a ticket also sweeps some that nobody came for.
_ISSUE = """
WITH swept AS (
    DELETE FROM gateway_wsticket WHERE digest IN (
        SELECT digest FROM gateway_wsticket WHERE expires_at < now() LIMIT 100 FOR UPDATE SKIP LOCKED)
)
INSERT INTO gateway_wsticket (digest, key_id, expires_at) VALUES (%s, %s, now() + make_interval(secs => %s))
"""

_REDEEM = "DELETE FROM gateway_wsticket WHERE digest = %s RETURNING key_id, expires_at > now()"


async def issue(pool: Pool, access: Access) -> str:
    """A ticket that opens one WebSocket within :data:`LIFETIME_SECONDS`; only its hash is kept."""
    ticket = secrets.token_urlsafe(32)
    async with pool.connection() as connection:
        await connection.execute(_ISSUE, (_digest(ticket), access.key_id, LIFETIME_SECONDS))
    return ticket


async def redeem(pool: Pool, ticket: str) -> int:
    """The id of the key behind the ticket, which is void from now on.

    Raises :class:`~tenants.errors.InvalidKey` when it is unknown, used or too old.
    """
    async with pool.connection() as connection:
        row = await (await connection.execute(_REDEEM, (_digest(ticket),))).fetchone()
    if row is None or not row[1]:
        raise InvalidKey("The ticket is unknown, used or expired.")
    key_id: int = row[0]
    return key_id


def _digest(ticket: str) -> bytes:
    return sha256(ticket.encode()).digest()
