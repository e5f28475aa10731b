from __future__ import annotations

from typing import Any

from django.http import HttpRequest
from ninja.security import HttpBearer

from gateway.api.callers import _bearer
from tenants.addresses import address_of
from tenants.callers import Caller, Role, caller_of_key
from tenants.errors import Forbidden
from tenants.models import ApiKey


class AnyKey(HttpBearer):
    """A tenant's key at OpenAI's own endpoints: one of scope ``inference``; one of scope ``manage`` only reads, and so
    does a viewer's.

    ``request.auth`` is its :class:`~tenants.callers.Caller`, with the key.
    """

    def __call__(self, request: HttpRequest) -> Any:
        return caller_for(_bearer(request), address_of(request), changes=request.method not in {"GET", "HEAD"})

    def authenticate(self, request: HttpRequest, token: str) -> Any:
        return caller_for(token, address_of(request), changes=request.method not in {"GET", "HEAD"})


def caller_for(text: str, address: str | None, *, changes: bool) -> Caller:
    """Raises what :func:`~tenants.callers.caller_of_key` does, and ``Forbidden`` where a manage key, or one of a
    viewer's, changes things.
    """
    found = caller_of_key(text, address, inference=True)
    if changes:
        if found.key is None or found.key.scope != ApiKey.Scope.INFERENCE:
            raise Forbidden("This key is for managing. Files and batches need a key of scope inference.")
        found.require(Role.DEVELOPER)
    return found
