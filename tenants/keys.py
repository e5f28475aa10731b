"""API keys: ``lpx_live_<public id>_<secret><checksum>``; operators' keys begin with ``lpx_operator_``.

``public id`` (12 characters) finds the row; ``secret`` (33 base62 characters, 196 bits) is stored only as HMAC-SHA-256
under a versioned pepper; ``checksum`` (6 base62 characters) is the CRC-32 of everything before it, so that a typing
error is refused without a database.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import zlib
from dataclasses import dataclass

from django.conf import settings

from tenants.errors import InvalidKey, NotConfigured

PREFIX = "lpx_live_"
OPERATOR_PREFIX = "lpx_operator_"
_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_PUBLIC_LENGTH = 12
_SECRET_LENGTH = 33
_CHECKSUM_LENGTH = 6
_FORMAT = re.compile(
    rf"({PREFIX}|{OPERATOR_PREFIX})([0-9A-Za-z]{{{_PUBLIC_LENGTH}}})_[0-9A-Za-z]{{{_SECRET_LENGTH}}}"
    rf"([0-9A-Za-z]{{{_CHECKSUM_LENGTH}}})",
    re.ASCII,
)


class Secret:
    """A key in plain text that does not show itself in logs, tracebacks or reprs; :meth:`reveal` says it."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return "Secret(…)"

    __str__ = __repr__

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("a secret is not pickled")


@dataclass(frozen=True, slots=True)
class ParsedKey:
    public_id: str
    secret: Secret


def _base62(number: int, length: int) -> str:
    digits = ""
    for _ in range(length):
        number, digit = divmod(number, 62)
        digits = _ALPHABET[digit] + digits
    return digits


def _random_text(length: int) -> str:
    return "".join(secrets.choice(_ALPHABET) for _ in range(length))


def generate(prefix: str = PREFIX) -> ParsedKey:
    """A new key; ``secret.reveal()`` is the whole text to show once."""
    public_id = _random_text(_PUBLIC_LENGTH)
    body = f"{prefix}{public_id}_{_random_text(_SECRET_LENGTH)}"
    return ParsedKey(public_id, Secret(body + _base62(zlib.crc32(body.encode()), _CHECKSUM_LENGTH)))


def parse(text: str, prefix: str = PREFIX) -> ParsedKey:
    """Check kind, format and checksum, offline. Raises :class:`~tenants.errors.InvalidKey`."""
    match = _FORMAT.fullmatch(text)
    if match is None or match[1] != prefix:
        raise InvalidKey
    body, checksum = text[:-_CHECKSUM_LENGTH], match[3]
    if not secrets.compare_digest(_base62(zlib.crc32(body.encode()), _CHECKSUM_LENGTH), checksum):
        raise InvalidKey
    return ParsedKey(match[2], Secret(text))


def current_pepper() -> int:
    """The pepper version that new keys are hashed under: the highest."""
    peppers: dict[int, bytes] = settings.KEY_PEPPERS
    if not peppers:
        raise NotConfigured("KEY_PEPPERS is empty: no key can be issued or checked")
    return max(peppers)


def hash(secret: Secret, pepper_version: int) -> bytes:
    """HMAC-SHA-256 of the whole key. Raises :class:`~tenants.errors.NotConfigured` for a pepper that is gone."""
    pepper = settings.KEY_PEPPERS.get(pepper_version)
    if pepper is None:
        raise NotConfigured(f"KEY_PEPPERS has no version {pepper_version}, which stored keys still use")
    return hmac.new(pepper, secret.reveal().encode(), hashlib.sha256).digest()


def matches(secret: Secret, digest: bytes, pepper_version: int) -> bool:
    """Whether the key has this stored digest; takes the same time either way."""
    return hmac.compare_digest(hash(secret, pepper_version), digest)
