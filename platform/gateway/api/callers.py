"""The management API's doors: tenants for ``/api/…``, operators for ``/api/operator/…``; by a key or a session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from django.http import HttpRequest
from ninja.security import HttpBearer
from ninja.utils import check_csrf

from gateway.auth import bearer
from gateway.errors import ApiError
from tenants.addresses import address_of
from tenants.callers import Caller, Operator, Role, caller_of_key, operator_of_key
from tenants.signed_in import caller_of_user, operator_of_user

if TYPE_CHECKING:
    from django.contrib.auth.models import User

TENANT_HEADER = "X-Tenant"


def _bearer(request: HttpRequest) -> str:
    header = request.META.get("HTTP_AUTHORIZATION")
    return bearer([] if header is None else [(b"authorization", header.encode("utf-8", "replace"))])


def user_of(request: HttpRequest) -> User | None:
    """Whoever is signed in; ``None`` where a key was sent, which then counts alone.

    A session comes along with whatever a page of another site makes the browser send, so what changes something needs
    the CSRF token as well: the cookie's value in the header ``X-CSRFToken``.
    """
    if "HTTP_AUTHORIZATION" in request.META or not request.user.is_authenticated:
        return None
    if check_csrf(request) is not None:
        raise ApiError(403, "csrf_failed", "The header X-CSRFToken is missing, or not what the cookie says.")
    return request.user


class TenantKey(HttpBearer):
    """A tenant's key of scope ``manage``, or the session of a member, who names the tenant in the header ``X-Tenant``
    if there are several; ``request.auth`` is their :class:`~tenants.callers.Caller`.

    :param role: the least role that may call. Reading needs ``viewer``, changing ``developer`` unless said otherwise.
    """

    def __init__(self, role: Role = Role.VIEWER) -> None:
        super().__init__()
        self._role = role

    def __call__(self, request: HttpRequest) -> Any:
        user, address = user_of(request), address_of(request)
        if user is None:
            caller = caller_of_key(_bearer(request), address)
        else:
            caller = caller_of_user(user, request.headers.get(TENANT_HEADER), address)
        caller.require(self._role)
        return caller

    def authenticate(self, request: HttpRequest, token: str) -> Any:
        return caller_of_key(token, address_of(request))


class OperatorBearer(HttpBearer):
    """An operator's key or session; ``request.auth`` is its :class:`~tenants.callers.Operator`."""

    def __call__(self, request: HttpRequest) -> Any:
        user = user_of(request)
        if user is not None:
            return operator_of_user(user, address_of(request))
        return operator_of_key(_bearer(request), address_of(request))

    def authenticate(self, request: HttpRequest, token: str) -> Any:
        return operator_of_key(token, address_of(request))


def caller(request: HttpRequest) -> Caller:
    return cast(Caller, request.auth)  # type: ignore[attr-defined]


def operator(request: HttpRequest) -> Operator:
    return cast(Operator, request.auth)  # type: ignore[attr-defined]
