from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from django.conf import settings
from django.http.request import split_domain_port, validate_host
from uuid6 import uuid7

from gateway import error_pages
from gateway.api_paths import is_api
from gateway.errors import (
    ApiError,
    bad_request,
    body_too_large,
    body_too_late,
    internal_error,
    method_not_allowed,
    not_found,
)
from gateway.http import send_json, send_page

Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[dict[str, Any], Receive, Send], Awaitable[None]]

_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "font-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
_PAGE_HEADERS = [
    (b"content-security-policy", _POLICY.encode()),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
]


BODY_SECONDS = 60.0
"""A body that has not arrived by then is given up, so that half-sent requests do not pile up."""


def check_host(headers: Sequence[tuple[bytes, bytes]]) -> None:
    """Django's own rule, for what is served ahead of Django. Raises :class:`ApiError` 400.

    Two of them are none: what looks at the one might not look at the other.
    """
    hosts = [value.decode("latin-1") for name, value in headers if name == b"host"]
    domain, _ = split_domain_port(hosts[0] if len(hosts) == 1 else "")
    if not domain or not validate_host(domain, settings.ALLOWED_HOSTS):
        raise bad_request("This server does not answer to that Host header.", code="host_not_allowed")


class Border:
    """What surrounds Django. Caps bodies while they arrive, and lets no API path answer an error in another shape
    than the API's: whatever layer refused, be it a middleware, the URL resolver or ninja. Pages get their policy, and
    what is refused here of other paths is a page too.
    """

    def __init__(self, application: Application) -> None:
        self._application = application

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        api = is_api(scope["path"])
        if api and scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}  # the server leaves the body out
        body = _CappedBody(scope, receive)
        response = _Response(send, api=api)
        try:
            check_host(scope["headers"])
        except ApiError as error:  # before Django, which would log each with a traceback
            await response.replace(error)
            return
        if not body.too_large:
            await self._application(scope, body.receive, response.send)
        if body.too_late and not response.started:
            await response.replace(body_too_late(BODY_SECONDS))
        elif body.too_large and not response.started:
            await response.replace(body_too_large(settings.MAX_BODY_BYTES))
        elif response.refused is not None:
            await response.replace(_error_of_status(response.refused, scope, response.allowed))


class _CappedBody:
    def __init__(self, scope: dict[str, Any], receive: Receive) -> None:
        declared = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        self.too_large = declared.isdigit() and int(declared) > settings.MAX_BODY_BYTES
        self.too_late = False
        self._receive = receive
        self._size = 0
        self._complete = False
        self._deadline = asyncio.get_running_loop().time() + BODY_SECONDS

    async def receive(self) -> Message:
        try:
            async with asyncio.timeout_at(None if self._complete else self._deadline):
                message = await self._receive()
        except TimeoutError:
            self.too_late = True
            return {"type": "http.disconnect"}
        self._complete = not message.get("more_body", False)
        self._size += len(message.get("body", b""))
        if self._size > settings.MAX_BODY_BYTES:
            self.too_large = True
            return {"type": "http.disconnect"}  # the application stops reading; the answer is sent afterwards
        return message


class _Response:
    """Passes a response on, but holds an API path's error back when it is not JSON: ``refused`` is its status."""

    def __init__(self, send: Send, *, api: bool) -> None:
        self._send = send
        self._api = api
        self.started = False
        self.refused: int | None = None
        self.allowed = ""

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = list(message.get("headers", []))
            fields = {name.lower(): value for name, value in headers}  # Django writes Content-Type
            if self._api:
                if message["status"] >= 400 and not fields.get(b"content-type", b"").startswith(b"application/json"):
                    self.refused = message["status"]
                    self.allowed = fields.get(b"allow", b"").decode("latin-1")
                    return
                headers.append((b"x-request-id", str(uuid7()).encode()))
                if b"cache-control" not in fields:  # keys, tickets, prompts: for nobody's disk
                    headers.append((b"cache-control", b"no-store"))
            else:
                headers += _PAGE_HEADERS
            self.started = True
            message = {**message, "headers": headers}
        if self.refused is None:
            await self._send(message)

    async def replace(self, error: ApiError) -> None:
        if not self._api:
            body = error_pages.too_large(settings.MAX_BODY_BYTES) if error.status == 413 else _page(error)
            await send_page(self._send, error.status, body, _PAGE_HEADERS)
            return
        headers = error.all_headers() | {"x-request-id": str(uuid7()), "cache-control": "no-store"}
        await send_json(self._send, error.status, error.payload(), headers)


def _page(error: ApiError) -> bytes:
    return error_pages.refused(error.status, error.message)


def _error_of_status(status: int, scope: dict[str, Any], allowed: str) -> ApiError:
    match status:
        case 404:
            return not_found(scope["path"])
        case 405:
            return method_not_allowed(scope["method"], scope["path"], allowed)
        case 400:
            return bad_request("The request is malformed.", code="bad_request")
        case _ if status >= 500:
            return internal_error()
        case _:
            return ApiError(status, "refused", "The request was refused.")
