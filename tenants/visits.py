"""Whether somebody who was signed in when a ticket was issued still is, and may still ask for that account."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from django.contrib.auth.models import User
    from psycopg import AsyncConnection


@dataclass(frozen=True, slots=True)
class Visit:
    """The session in which somebody got a ticket of their playground key.

    :param session: its key. :param password: a digest of what was stored of the password then. A new password ends the
        session, whose row stays until Django meets it again.
    """

    session: str = field(repr=False)
    password: bytes = field(repr=False)


LASTS = """
SELECT FROM tenants_apikey k
  JOIN auth_user u ON u.id = k.playground_of_id AND u.is_active AND sha256(convert_to(u.password, 'UTF8')) = v.password
  JOIN django_session s ON s.session_key = v.session AND s.expire_date > now()
  LEFT JOIN tenants_member m ON m.id = k.member_id
 WHERE k.id = v.key_id
   AND CASE WHEN k.member_id IS NULL THEN u.is_staff ELSE m.user_id = u.id AND m.role IN ('developer', 'owner') END
"""
"""Has a row while the visit ``v (key_id, session, password)`` lasts: the session is there, its user is the one whose
key it is, has the same password, is not switched off, and is what they were: an operator, or for a member's key that
member with a role that may ask. Whether the key itself works is not looked at.
"""

_LASTING = f"""
SELECT v.place
  FROM unnest(%s::bigint[], %s::text[], %s::bytea[]) WITH ORDINALITY AS v (key_id, session, password, place)
 WHERE EXISTS ({LASTS})
"""  # noqa: S608 - only the text of another statement is put in


def begun(user: User, session: str) -> Visit:
    """The visit of whoever is signed in with the session of this key."""
    return Visit(session, sha256(user.password.encode()).digest())


async def lasting(
    connection: AsyncConnection[Any], asked: Collection[tuple[int, Visit]]
) -> frozenset[tuple[int, Visit]]:
    """Of visits, each with the id of its key, those that last. One statement, however many they are."""
    found = list(asked)
    columns = ([key for key, _ in found], [one.session for _, one in found], [one.password for _, one in found])
    rows = await (await connection.execute(_LASTING, columns)).fetchall()
    return frozenset(found[place - 1] for (place,) in rows)
