"""How often somebody may try to sign in. Counted in PostgreSQL: exact over any number of gateway processes."""

from __future__ import annotations

import ipaddress
import secrets
from dataclasses import dataclass
from hashlib import sha256

from django.core import signing
from django.db import connection

SECONDS = 900.0
"""In which all tries come back, one after the other."""

OF_PAIR = 10
"""Of one network address at one account."""

OF_ACCOUNT = 100
"""From all addresses together. Many, or anybody could lock anybody out; a browser that was in before has its own."""

OF_ADDRESS = 50
"""At all accounts together, since many people may come from one address."""

OF_DEVICE = 10
"""Of a browser in which the account signed in before, wherever it is; and of the page that changes a password."""


DEVICE_SECONDS = 180 * 86400
"""For which a browser is known after somebody signed in."""

_SALT = "tenants.sign_in.device"


@dataclass(frozen=True, slots=True)
class TooManyTries(Exception):
    """:param retry_after: seconds until the next try."""

    retry_after: float


# One statement takes a try or, where none is left, changes nothing and says how many there are.
_TAKE = """
WITH taken AS (
    INSERT INTO tenants_signintries AS t (subject, "left", at) VALUES (%(subject)s, %(most)s - 1, clock_timestamp())
    ON CONFLICT (subject) DO UPDATE
       SET "left" = least(%(most)s, t."left" + extract(epoch FROM clock_timestamp() - t.at) * %(rate)s) - 1,
           at = clock_timestamp()
     WHERE least(%(most)s, t."left" + extract(epoch FROM clock_timestamp() - t.at) * %(rate)s) >= 1
    RETURNING "left"
)
SELECT EXISTS (SELECT FROM taken),
       (SELECT "left" + extract(epoch FROM clock_timestamp() - at) * %(rate)s FROM tenants_signintries
         WHERE subject = %(subject)s)
"""

# Whoever tries also sweeps some rows that are full again.
_SWEEP = """
DELETE FROM tenants_signintries WHERE subject IN (
    SELECT subject FROM tenants_signintries WHERE at < clock_timestamp() - make_interval(secs => %s)
     LIMIT 100 FOR UPDATE SKIP LOCKED)
"""


def take_try(username: str, address: str | None, device: str | None = None) -> None:
    """Count a try before the password is looked at, so that tries at the same time count as well.

    Never inside a transaction that a wrong password rolls back.

    :param device: of :func:`device_of`. Such a browser's tries are its own: others' cannot use them up.

    Raises :class:`TooManyTries` where none is left; for an account that does not exist as for one that does.
    """
    with connection.cursor() as cursor:
        cursor.execute(_SWEEP, (SECONDS,))
    if device is not None:
        _take(_hashed("device", username, device), OF_DEVICE)
        return
    _take(_address(address), OF_ADDRESS)
    # Before the account's: whoever has none left at one address takes nothing from everybody's.
    _take(_hashed("pair", username, _address(address)), OF_PAIR)
    _take(_hashed("account", username), OF_ACCOUNT)


def take_change(username: str) -> None:
    """Count a try at changing the password, by somebody signed in; apart from the tries to sign in. As
    :func:`take_try`.
    """
    _take(_hashed("change", username), OF_DEVICE)


def forget_tries(username: str, address: str | None, device: str | None = None) -> None:
    """The right password: this address's and this browser's tries at the account count from nothing again. Those that
    all have together do not.
    """
    mine = [_hashed("pair", username, _address(address)), _hashed("change", username)]
    if device is not None:
        mine.append(_hashed("device", username, device))
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM tenants_signintries WHERE subject = ANY(%s)", (mine,))


def device_cookie(username: str) -> str:
    """For a browser in which ``username`` has just signed in. It opens nothing; see :func:`device_of`."""
    return signing.dumps([_hashed("account", username), secrets.token_urlsafe(16)], salt=_SALT)


def device_of(username: str, cookie: str | None) -> str | None:
    """Which browser a cookie names; ``None`` for another account's, an old or a made-up one."""
    try:
        account, device = signing.loads(cookie or "", salt=_SALT, max_age=DEVICE_SECONDS)
    except (signing.BadSignature, ValueError, TypeError):
        return None
    return str(device) if account == _hashed("account", username) else None


def _take(subject: str, most: int) -> None:
    rate = most / SECONDS
    with connection.cursor() as cursor:
        cursor.execute(_TAKE, {"subject": subject, "most": float(most), "rate": rate})
        taken, left = cursor.fetchone()
    if not taken:
        raise TooManyTries(max(0.0, (1 - left) / rate))


def _hashed(kind: str, *parts: str) -> str:
    return f"{kind}:{sha256(chr(0).join(parts).encode()).hexdigest()}"


def _address(address: str | None) -> str:
    """IPv6 by its /64, which is what one customer of a provider has at least."""
    try:
        parsed = ipaddress.ip_address(address or "")
    except ValueError:
        return "address:unknown"
    if isinstance(parsed, ipaddress.IPv6Address):
        mapped = parsed.ipv4_mapped
        parsed = mapped or ipaddress.ip_network((parsed, 64), strict=False).network_address
    return f"address:{parsed}"
