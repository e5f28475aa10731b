"""The control plane's exception tree for tenants.

::

    TenantsError                every error this package raises on purpose; ``str()`` is safe to show
    ├── UnscopedQuery           a query on a tenant-owned model that names no tenant (a bug of the caller)
    ├── InvalidKey              malformed, unknown, expired or revoked key: all alike to the outside
    │   └── KeyEnded            expired or revoked, by whoever held it rightly
    ├── ModelNotFound           no such model, or none that this key may use: the same error
    ├── Denied                  admission refused a request; ``code``, ``limit``, ``retry_after`` … say why
    ├── AdapterRefused          an adapter's files were not taken in; the message names the file or field
    ├── NotFound                no such object, or somebody else's: the same error
    ├── Invalid                 a value that cannot be; ``param`` names it
    ├── Conflict                what the object is at the moment does not allow it
    ├── Forbidden               the caller's role, or the kind of its key, does not allow it
    │   └── Suspended           an operator suspended the tenant
    └── NotConfigured           an operator has to do something first; the message says what
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar
from uuid import UUID

if TYPE_CHECKING:
    from tenants.limit_state import LimitState


class TenantsError(Exception):
    """Base of every error raised on purpose."""


class UnscopedQuery(TenantsError):
    pass


class InvalidKey(TenantsError):
    def __init__(self, message: str = "Incorrect API key provided.") -> None:
        super().__init__(message)


class KeyEnded(InvalidKey):
    """The key was good once. Its holder is told what everybody with a wrong key is told; the denials tell its tenant.

    :param code: ``key_revoked`` or ``key_expired``.
    """

    def __init__(self, tenant_id: UUID, key_id: int, code: str) -> None:
        super().__init__()
        self.tenant_id = tenant_id
        self.key_id = key_id
        self.code = code


class ModelNotFound(TenantsError):
    """The same words for a model that does not exist and for one that belongs to somebody else."""

    def __init__(self, name: str) -> None:
        super().__init__(f"The model {name!r} does not exist or you do not have access to it.")
        self.name = name


class Denied(TenantsError):
    """Admission refused a request; nothing was consumed.

    :param code: ``rate_limit_exceeded``, ``concurrency_limit_exceeded``, ``insufficient_quota`` (429);
        ``context_length_exceeded``, ``max_output_tokens_exceeded``, ``invalid_value`` (400); ``tenant_suspended``
        and ``address_not_allowed`` (403); ``key_revoked`` (401); ``model_not_found`` (404).
    :param limit: name of the limit that was hit (``requests_per_minute``, …) or ``None``.
    :param subject: whose limit it is: ``tenant``, ``member``, ``key``; ``model`` for its context; or ``None``.
    :param remaining: how much of that limit is left, in its own unit (requests, tokens, micro-units).
    :param param: the request field at fault, or ``None``. The prompt is called ``messages`` here.
    :param retry_after: seconds until the same request can be admitted, as far as is known; ``None``: never by waiting.
    :param limits: the caller's limits as they stand, ``None`` where the key or tenant itself was refused.
    """

    STATUS: ClassVar[dict[str, int]] = {
        "rate_limit_exceeded": 429,
        "concurrency_limit_exceeded": 429,
        "insufficient_quota": 429,
        "context_length_exceeded": 400,
        "max_output_tokens_exceeded": 400,
        "invalid_value": 400,
        "tenant_suspended": 403,
        "address_not_allowed": 403,
        "key_revoked": 401,
        "model_not_found": 404,
    }

    def __init__(
        self,
        code: str,
        message: str,
        *,
        limit: str | None = None,
        subject: str | None = None,
        remaining: int | None = None,
        param: str | None = None,
        retry_after: float | None = None,
        limits: LimitState | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.limit = limit
        self.subject = subject
        self.remaining = remaining
        self.param = param
        self.retry_after = retry_after
        self.limits = limits

    @property
    def status(self) -> int:
        return self.STATUS[self.code]


class AdapterRefused(TenantsError):
    pass


class NotFound(TenantsError):
    """The same words for what does not exist and for what belongs to somebody else.

    :param noun: ``key``, ``adapter`` …
    :param param: the field that named it; without one, the REST API finds the path's or query's that did.
    """

    def __init__(self, noun: str, name: str, param: str | None = None) -> None:
        super().__init__(f"There is no {noun} {name[:200]!r}.")
        self.name = name
        self.param = param


class Invalid(TenantsError):
    def __init__(self, message: str, param: str) -> None:
        super().__init__(message)
        self.param = param


class Conflict(TenantsError):
    """:param code: what a program may tell conflicts apart by."""

    def __init__(self, message: str, param: str | None = None, code: str = "conflict") -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class Forbidden(TenantsError):
    """:param code: what a program may tell refusals apart by."""

    def __init__(self, message: str, code: str = "permission_denied") -> None:
        super().__init__(message)
        self.code = code


class Suspended(Forbidden):
    """Of the tenant: the same words and code wherever it asks."""

    def __init__(self) -> None:
        super().__init__("This account is suspended.", "tenant_suspended")


class NotConfigured(TenantsError):
    pass
