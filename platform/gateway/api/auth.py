from __future__ import annotations

from typing import Any, cast

from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest
from ninja.security import HttpBearer

from gateway.auth import address_of, bearer
from gateway.consumers import services_of
from gateway.services import Services
from tenants.access import Access


def services(request: HttpRequest) -> Services:
    return services_of(cast(ASGIRequest, request).scope)


class Key(HttpBearer):
    """The caller's API key; ``request.auth`` is its :class:`~tenants.access.Access`. Raises 401 for a wrong one."""

    async def __call__(self, request: HttpRequest) -> Any:
        scope = cast(ASGIRequest, request).scope
        return await services(request).keys.access(bearer(scope["headers"]), address_of(scope))

    async def authenticate(self, request: HttpRequest, token: str) -> Any:
        return await services(request).keys.access(token, address_of(cast(ASGIRequest, request).scope))


def access(request: HttpRequest) -> Access:
    return cast(Access, request.auth)  # type: ignore[attr-defined]
