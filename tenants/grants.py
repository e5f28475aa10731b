"""Signs what workers verify: grants for single requests, and the operator's token for loading adapters."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from django.conf import settings

from inference.protocol import GRANT_ALGORITHM, GRANT_ISSUER, OPERATOR_AUDIENCE, Grant
from tenants.errors import NotConfigured

START_WITHIN_SECONDS = 60
"""A grant is good for starting a request this long; a started one runs on."""


@lru_cache(maxsize=4)
def _private_key(path: str) -> Ed25519PrivateKey:
    try:
        key = load_pem_private_key(Path(path).read_bytes(), password=None)
    except (OSError, ValueError) as error:
        raise NotConfigured(f"GRANT_PRIVATE_KEY_FILE {path} cannot be read as a PEM private key") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise NotConfigured(f"GRANT_PRIVATE_KEY_FILE {path} is not an Ed25519 key")
    return key


def sign(grant: Grant) -> str:
    """The grant as an Ed25519 JWT."""
    return jwt.encode(grant.claims(), _private_key(str(settings.GRANT_PRIVATE_KEY_FILE)), algorithm=GRANT_ALGORITHM)


def signed_now(grant: Grant) -> str:
    """The same, good for starting within the next :data:`START_WITHIN_SECONDS`: the request may come to a worker long
    after its admission, when the one that it waited at is lost.
    """
    return sign(replace(grant, expires_at=int(time.time()) + START_WITHIN_SECONDS))


def operator_token(*, lifetime: float = 60.0) -> str:
    """A token that lets its bearer load and unload adapters at a worker, for ``lifetime`` seconds."""
    claims = {
        "iss": GRANT_ISSUER,
        "aud": OPERATOR_AUDIENCE,
        "sub": "operator",
        "exp": int(time.time() + lifetime),
    }
    return jwt.encode(claims, _private_key(str(settings.GRANT_PRIVATE_KEY_FILE)), algorithm=GRANT_ALGORITHM)
