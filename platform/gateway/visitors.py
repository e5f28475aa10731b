"""Who is behind the session of a request that is served ahead of Django."""

from __future__ import annotations

from io import BytesIO
from typing import Any

from django.contrib.auth.middleware import AuthenticationMiddleware
from django.contrib.sessions.middleware import SessionMiddleware
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, HttpResponse

from console.place import place_of
from gateway.api.callers import TENANT_HEADER, user_of
from gateway.errors import ApiError, bad_request
from tenants.callers import Caller, Role

_OF_BODY = {b"content-type", b"content-length", b"transfer-encoding"}
"""Headers of a body that is read elsewhere: Django would look for the CSRF token there."""


def has_token(scope: dict[str, Any]) -> bool:
    """Whether a page's script sent it, and no key."""
    names = {name for name, _ in scope["headers"]}
    return b"x-csrftoken" in names and b"authorization" not in names


def caller_of_page(scope: dict[str, Any], role: Role) -> Caller:
    """The signed-in person, at the account that ``X-Tenant`` names, as the console's pages have it: a member with this
    role, or an operator.

    Raises :class:`~gateway.errors.ApiError` 401 and 403 (no session, wrong CSRF token), and what
    :func:`~console.place.place_of` does.
    """
    headers = [(name, value) for name, value in scope["headers"] if name not in _OF_BODY]
    request = ASGIRequest({**scope, "headers": headers}, BytesIO())
    SessionMiddleware(_nothing).process_request(request)
    AuthenticationMiddleware(_nothing).process_request(request)
    if user_of(request) is None:
        raise ApiError(401, "signed_out", "You are signed out. Sign in again.")
    slug = request.headers.get(TENANT_HEADER)
    if not slug:
        raise bad_request("The header X-Tenant has to name the account.", TENANT_HEADER)
    caller = place_of(request, slug).caller
    assert caller is not None, "of a place at an account"
    caller.require(role)
    return caller


def _nothing(request: HttpRequest) -> HttpResponse:
    raise AssertionError("the middleware is asked for the session alone")
