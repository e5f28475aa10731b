"""Frames in, frames out; the rules are in :mod:`gateway.chat`. Mounted ahead of Django: no thread,
no connection held.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, ClassVar, cast

from channels.generic.http import AsyncHttpConsumer  # type: ignore[import-untyped]
from django.conf import settings
from uuid6 import uuid7

from gateway.auth import address_of, bearer
from gateway.bodies import turn
from gateway.border import BODY_SECONDS, check_host
from gateway.chat import Run
from gateway.errors import ApiError, body_too_large, body_too_late, error_of, method_not_allowed
from gateway.http import EventTransport, JsonTransport, Send, send_json
from gateway.parsing import parse, parse_json
from gateway.ratelimit import limits_of, rate_limit_headers
from gateway.refusals import record
from gateway.schemas import AnyRequest, ChatRequest, CompletionRequest
from gateway.services import Services
from gateway.transport import ClientGone, serve
from tenants.access import Access
from tenants.errors import Suspended

Receive = Callable[[], Awaitable[dict[str, Any]]]

logger = logging.getLogger(__name__)


def services_of(scope: Mapping[str, Any]) -> Services:
    return cast(Services, scope["state"]["services"])


class CompletionConsumer(AsyncHttpConsumer):  # type: ignore[misc]
    """``POST /v1/chat/completions`` and ``/v1/completions``.

    Channels hands an HTTP consumer one event after the other, so a disconnect would wait until the answer is complete.
    Therefore the work is a task of its own, and this coroutine listens for the disconnect beside it.
    """

    schema: ClassVar[type[ChatRequest] | type[CompletionRequest]] = ChatRequest

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        self.scope = scope
        self.base_send = send
        access: Access | None = None
        try:
            access = await self._authenticate()
            body = await _read_body(scope, receive)
        except ClientGone:
            return
        except Exception as error:
            await self._refuse(error, access)
            return
        work = asyncio.create_task(self._answer(access, body))
        del body  # megabytes, which nobody needs while the request runs
        gone = asyncio.create_task(_until_gone(receive))
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            work.cancel()
            gone.cancel()
            ended, _ = await asyncio.gather(work, gone, return_exceptions=True)
            if isinstance(ended, Exception) and not isinstance(ended, OSError):
                logger.error("unexpected error", exc_info=ended)

    async def _authenticate(self) -> Access:
        check_host(self.scope["headers"])
        if self.scope["method"] != "POST":
            raise method_not_allowed(self.scope["method"], self.scope["path"], "POST")
        return await services_of(self.scope).keys.access(bearer(self.scope["headers"]), address_of(self.scope))

    async def _answer(self, access: Access, body: bytes) -> None:
        services = services_of(self.scope)
        try:
            async with turn(services.pool, access, len(body)):
                request: AnyRequest = parse(self.schema, parse_json(body))
        except (ApiError, Suspended) as error:
            await self._refuse(error, access)
            return
        del body
        run = Run(services, access, request)
        if not request.stream:
            await serve(run, JsonTransport(self.base_send), stream=False)
            return
        transport = EventTransport(self.base_send, run)
        try:
            await serve(run, transport, stream=True)
        finally:
            transport.close()

    async def _refuse(self, error: Exception, access: Access | None) -> None:
        """:param access: ``None`` before it is known."""
        found, request_id = error_of(error), uuid7()
        headers = {"x-request-id": str(request_id)} | found.all_headers()
        if access is not None:
            pool = services_of(self.scope).pool
            record(pool, access, found, request_id)
            headers |= rate_limit_headers(await limits_of(pool, access))
        await send_json(self.base_send, found.status, found.payload(), headers)


class TextCompletionConsumer(CompletionConsumer):
    schema = CompletionRequest


async def _read_body(scope: dict[str, Any], receive: Receive) -> bytes:
    """The body, capped while it arrives. Raises :class:`ApiError` 413 and 408, and :class:`ClientGone`."""
    limit: int = settings.MAX_BODY_BYTES
    declared = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
    if declared.isdigit() and int(declared) > limit:
        raise body_too_large(limit)
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(BODY_SECONDS):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone
                part = message.get("body", b"")
                size += len(part)
                if size > limit:
                    raise body_too_large(limit)
                parts.append(part)
                if not message.get("more_body"):
                    return b"".join(parts)
    except TimeoutError:
        raise body_too_late(BODY_SECONDS) from None


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
