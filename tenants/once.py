"""What is asked for twice happens once: the API's ``Idempotency-Key``, and the one-time token in a form."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from tenants.errors import Conflict
from tenants.models import IdempotentRequest

REUSED = "idempotency_key_reused"
"""Code of the :class:`~tenants.errors.Conflict` for a key that came with another request."""

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Repeated:
    """What the first of the two was answered, as its ``saved`` had it."""

    status: int
    body: bytes


def once(
    caller: str,
    key: str,
    fingerprint: bytes,
    act: Callable[[], Result],
    saved: Callable[[Result], tuple[int, bytes]],
) -> Result | Repeated:
    """``act()``, unless the caller's key came with the same request before: then what is kept of that one. Call it in
    the transaction of the act: what fails is forgotten with it, and a second request waits for the first one's end.

    :param caller: :attr:`~tenants.callers.Caller.name`. :param key: the client's, at most 255 characters.
    :param fingerprint: of everything the request says, 32 bytes.
    :param saved: what a repetition may be told of the result, a status and a text: no secret.

    Raises :class:`~tenants.errors.Conflict` with the code :data:`REUSED` for a key of another request.
    """
    row, made = IdempotentRequest.objects.get_or_create(caller=caller, key=key, defaults={"fingerprint": fingerprint})
    if not made:
        if bytes(row.fingerprint) != fingerprint:
            raise Conflict("This Idempotency-Key was used for another request.", "Idempotency-Key", REUSED)
        return Repeated(row.status, bytes(row.body))
    result = act()
    status, body = saved(result)
    IdempotentRequest.objects.filter(pk=row.pk).update(status=status, body=body)
    return result
