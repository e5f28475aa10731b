"""Secrets of webhooks, and what they sign: https://www.standardwebhooks.com.

A secret has to be known again to sign with it, so it is not hashed but sealed: AES-256-GCM under a key derived from one
of the installation's peppers, bound to its webhook. A copy of the database alone reveals none.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Iterable
from uuid import UUID

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from django.conf import settings

from tenants import keys
from tenants.errors import NotConfigured
from tenants.keys import Secret

PREFIX = "whsec_"
_BYTES = 32
_NONCE = 12


def generate() -> Secret:
    """A new secret, in the form that receivers configure: ``whsec_`` and base64."""
    return Secret(PREFIX + base64.b64encode(secrets.token_bytes(_BYTES)).decode())


def seal(secret: Secret, webhook: UUID) -> bytes:
    """Pepper version (2 bytes), nonce, ciphertext. Under the newest pepper."""
    version, nonce = keys.current_pepper(), secrets.token_bytes(_NONCE)
    sealed = _cipher(version).encrypt(nonce, secret.reveal().encode(), webhook.bytes)
    return version.to_bytes(2, "big") + nonce + sealed


def unseal(sealed: bytes, webhook: UUID) -> Secret:
    """Raises :class:`~tenants.errors.NotConfigured` where the pepper is gone or not the one it was sealed under."""
    version, nonce, rest = int.from_bytes(sealed[:2], "big"), sealed[2 : 2 + _NONCE], sealed[2 + _NONCE :]
    try:
        return Secret(_cipher(version).decrypt(nonce, rest, webhook.bytes).decode())
    except InvalidTag:
        raise NotConfigured(
            f"The secret of webhook {webhook} was sealed under another pepper {version}: rotate it"
        ) from None


def is_stale(sealed: bytes) -> bool:
    """Whether it is sealed under a pepper that is no longer the newest."""
    return int.from_bytes(sealed[:2], "big") != keys.current_pepper()


def signature(sealers: Iterable[Secret], message_id: str, timestamp: int, body: bytes) -> str:
    """The header ``webhook-signature``: one ``v1,<base64>`` a secret, separated by spaces."""
    signed = f"{message_id}.{timestamp}.".encode() + body
    return " ".join(f"v1,{_mac(secret, signed)}" for secret in sealers)


def _mac(secret: Secret, signed: bytes) -> str:
    key = base64.b64decode(secret.reveal().removeprefix(PREFIX))
    return base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()


def _cipher(version: int) -> AESGCM:
    pepper: bytes | None = settings.KEY_PEPPERS.get(version)
    if pepper is None:
        raise NotConfigured(f"KEY_PEPPERS has no version {version}, under which a webhook's secret is sealed")
    return AESGCM(HKDF(SHA256(), 32, salt=None, info=b"loraplex webhook secrets 1").derive(pepper))
