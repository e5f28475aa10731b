"""The worker's half of isolation: it computes nothing that the control plane has not signed for.

The worker holds the public key only. What was decided at admission is checked again here, where the token is computed:
who, on which base and adapter, in which cache namespace, how much, how urgently.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from inference.errors import ConfigError, GrantRefused
from inference.protocol import GENERATE_AUDIENCE, GRANT_ALGORITHM, GRANT_ISSUER, OPERATOR_AUDIENCE, Grant

MAX_LIFETIME_SECONDS = 3600
"""A grant that lives longer is refused: seen ids are remembered that long, so this bounds the memory of them."""
MAX_TOKEN_BYTES = 4096
MAX_INTEGER = 2**31 - 1
OPERATOR_SUBJECT = "operator"


class GrantVerifier:
    """Checks signed tokens and remembers the request ids it has seen.

    :ivar base: fingerprint of the loaded base model.

    A restarted worker has forgotten the ids; a grant lives for about a minute, so a replay across a restart needs a
    stolen token within that minute. It would be billed to nobody and still could not leave its tenant's namespace.
    """

    def __init__(self, key: Ed25519PublicKey, *, base: str, clock: Callable[[], float] = time.time) -> None:
        self._key = key
        self.base = base
        self._clock = clock
        self._seen: set[str] = set()
        self._expiries: list[tuple[int, str]] = []

    @classmethod
    def load(cls, path: Path, *, base: str) -> GrantVerifier:
        """Read an Ed25519 public key in PEM; raises :class:`ConfigError`."""
        try:
            key = load_pem_public_key(path.read_bytes())
        except OSError as error:
            raise ConfigError(f"the grant key {path} cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise ConfigError(f"the grant key {path} is not a public key in PEM") from error
        if not isinstance(key, Ed25519PublicKey):
            raise ConfigError(f"the grant key {path} is not an Ed25519 key")
        return cls(key, base=base)

    def verify(self, token: str) -> Grant:
        """The grant that ``token`` carries; raises :class:`GrantRefused`. Does not use it up."""
        try:
            grant = Grant.from_claims(self._claims(token, GENERATE_AUDIENCE))
        except (KeyError, TypeError) as error:
            raise GrantRefused("The grant lacks a claim or holds one of the wrong type") from error
        if grant.expires_at > self._clock() + MAX_LIFETIME_SECONDS:
            raise GrantRefused("The grant lives longer than a worker accepts")
        positive = (grant.weight, grant.max_output, grant.max_input)
        if not all(1 <= number <= MAX_INTEGER for number in positive) or abs(grant.priority) > MAX_INTEGER:
            raise GrantRefused("The grant holds a number out of range")
        if not _is_uuid(grant.request_id):
            raise GrantRefused("The grant's request id is not a UUID")
        if not all(text.isprintable() for text in (grant.tenant, grant.namespace, grant.adapter or "")):
            raise GrantRefused("The grant holds text that is not printable")
        if grant.base != self.base:
            raise GrantRefused("The grant is for another base model")
        return grant

    def use(self, grant: Grant) -> None:
        """Use the grant up; raises :class:`GrantRefused` if its request id has been used before.

        Expiry is looked at again: a body may arrive long after its header, and an id that has expired is forgotten.
        """
        now = self._clock()
        if grant.expires_at <= now:
            raise GrantRefused("The token has expired")
        while self._expiries and self._expiries[0][0] < now:
            self._seen.discard(heapq.heappop(self._expiries)[1])
        if grant.request_id in self._seen:
            raise GrantRefused("The grant has been used already")
        self._seen.add(grant.request_id)
        heapq.heappush(self._expiries, (grant.expires_at, grant.request_id))

    def give_back(self, grant: Grant) -> None:
        """Undo :meth:`use` for a request that was refused before anything was computed, so that it can be retried."""
        self._seen.discard(grant.request_id)

    def check_operator(self, token: str) -> None:
        """Raises :class:`GrantRefused` unless ``token`` was signed for operating workers."""
        if self._claims(token, OPERATOR_AUDIENCE).get("sub") != OPERATOR_SUBJECT:
            raise GrantRefused("The token is not an operator's")

    def _claims(self, token: str, audience: str) -> dict[str, Any]:
        if len(token) > MAX_TOKEN_BYTES:
            raise GrantRefused("The token is too long")
        try:
            return jwt.decode(
                token,
                self._key,
                algorithms=[GRANT_ALGORITHM],
                audience=audience,
                issuer=GRANT_ISSUER,
                options={"require": ["exp", "aud", "iss"], "strict_aud": True},
            )
        except jwt.ExpiredSignatureError as error:
            raise GrantRefused("The token has expired") from error
        except jwt.PyJWTError as error:
            raise GrantRefused("The token is not valid") from error


def _is_uuid(text: str) -> bool:
    try:
        return str(UUID(text)) == text
    except ValueError:
        return False


def check_agreement(
    grant: Grant,
    *,
    adapter: str | None,
    prompt_tokens: int,
    max_tokens: int | None,
    cache_salt: str | None,
    priority: int | None,
) -> None:
    """Raises :class:`GrantRefused` where a request asks for something else than its grant allows.

    Says nothing about what exists: an adapter of another tenant and one that was never made are the same.
    """
    if adapter != grant.adapter:
        raise GrantRefused("The grant is not for this model")
    if prompt_tokens > grant.max_input:
        raise GrantRefused(f"The grant allows {grant.max_input} prompt tokens, not {prompt_tokens}")
    if max_tokens is not None and max_tokens > grant.max_output:
        raise GrantRefused(f"The grant allows max_tokens up to {grant.max_output}, not {max_tokens}")
    if cache_salt is not None and cache_salt != grant.namespace:
        raise GrantRefused("cache_salt is not the grant's namespace")
    if priority is not None and priority != grant.priority:
        raise GrantRefused("priority is not the grant's")
