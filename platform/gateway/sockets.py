"""``/v1/ws``: one socket, many requests. :mod:`gateway.frames` lists the frames.

Close codes: 1001 the server is going away · 1003 a binary frame · 1009 a frame too large · 4400 too many wrong frames ·
4401 the key is no longer valid, or whoever got the ticket is signed out · 4408 the client reads or acknowledges too
little · 4409 the session went on elsewhere · 4410 the session has ended.

The server pings; a client that does not answer is cut off by uvicorn (``--ws-ping-…`` in :mod:`gateway.installation`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, cast
from urllib.parse import urlsplit

from channels.exceptions import StopConsumer  # type: ignore[import-untyped]
from channels.generic.websocket import AsyncWebsocketConsumer  # type: ignore[import-untyped]
from django.conf import settings

from gateway import frames, tickets
from gateway.auth import Credential, address_of, bearer
from gateway.border import check_host
from gateway.consumers import Receive, services_of
from gateway.dialogue import Dialogue
from gateway.errors import ApiError, error_of, shutting_down
from gateway.frames import PROTOCOL
from gateway.http import Send
from gateway.sessions import STALL_SECONDS, Sessions
from tenants.visits import Visit

TICKET_PREFIX = "ticket."

SHUT_SECONDS = 4.0
"""So long a close waits for a client that reads nothing; the server's pings cut off one that never reads again."""


def sessions_of(scope: Mapping[str, Any]) -> Sessions:
    return cast(Sessions, scope["state"]["sessions"])


class SocketConsumer(AsyncWebsocketConsumer):  # type: ignore[misc]
    """Programs send their key in ``Authorization``; browsers, which cannot, send a ticket as a subprotocol."""

    channel_layer_alias = "none"  # no layer: with Valkey away sockets still work

    def __init__(self) -> None:
        super().__init__()
        self._dialogue: Dialogue | None = None
        self._shut = False

    @property
    def key_id(self) -> int:
        """Of the key that opened it."""
        return 0 if self._dialogue is None else self._dialogue.key_id

    @property
    def visit(self) -> Visit | None:
        """Of whoever opened it while signed in."""
        return None if self._dialogue is None else self._dialogue.credential.visit

    @property
    def address(self) -> str | None:
        """Of its client."""
        return address_of(self.scope)

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            services_of(scope).sockets.discard(self)
            if self._dialogue is not None:
                await self._dialogue.gone()

    async def dispatch(self, message: dict[str, Any]) -> None:
        """As Channels' own, without its clean-up of ORM connections, which would cost a thread hop per frame."""
        try:
            await getattr(self, message["type"].replace(".", "_"))(message)
        except OSError:  # nobody listens any more, or reads nothing for too long
            raise StopConsumer from None

    async def websocket_connect(self, message: dict[str, Any]) -> None:
        offered: list[str] = self.scope["subprotocols"]
        services = services_of(self.scope)
        try:
            if services.draining:
                raise shutting_down()
            check_host(self.scope["headers"])
            dialogue = Dialogue(services, sessions_of(self.scope), self, await self._credential(offered))
            await dialogue.open()
        except Exception as error:
            await deny(self.scope, self.base_send, error_of(error))
            raise StopConsumer from None
        self._dialogue = dialogue
        services.sockets.add(self)
        await self.accept(PROTOCOL if PROTOCOL in offered else None)

    async def websocket_disconnect(self, message: dict[str, Any]) -> None:
        raise StopConsumer

    async def websocket_receive(self, message: dict[str, Any]) -> None:
        text: str | None = message.get("text")
        if self._shut:
            return
        if text is None:
            await self.shut(frames.UNSUPPORTED_DATA, "frames have to be text")
        elif len(text.encode(errors="replace")) > settings.MAX_BODY_BYTES:
            await self.shut(frames.TOO_LARGE, f"a frame may have {settings.MAX_BODY_BYTES} bytes")
        elif self._dialogue is not None:
            await self._dialogue.receive(text)

    async def go_away(self) -> None:
        """Close because the process stops; running requests were stopped before."""
        if self._dialogue is not None:
            await self._dialogue.delivered(1.0)
        await self.shut(frames.GOING_AWAY, "the server is shutting down")

    async def revoke(self, error: ApiError) -> None:
        """Close because what opened it is no longer good; its running requests are stopped elsewhere, with this too."""
        await self.shut(frames.KEY_INVALID, error.message)

    async def put_text(self, text: str) -> None:
        """Raises ``OSError`` when the socket is closed, or the client reads nothing for :data:`STALL_SECONDS`."""
        try:
            async with asyncio.timeout(STALL_SECONDS):
                await self.base_send({"type": "websocket.send", "text": text})
        except RuntimeError as error:  # closed by us: what had arrived by then is still read
            raise ConnectionResetError("the socket is closed") from error

    async def shut(self, code: int, reason: str) -> None:
        """Nothing more is read. The close goes out once the client reads, or with the connection; nobody waits longer
        than :data:`SHUT_SECONDS` for that.
        """
        self._shut = True
        closing = services_of(self.scope).spawn(self._close(code, reason))
        await asyncio.wait({closing}, timeout=SHUT_SECONDS)

    async def _close(self, code: int, reason: str) -> None:
        with contextlib.suppress(OSError, RuntimeError):  # RuntimeError: it is being closed already
            await self.close(code, reason)

    async def _credential(self, offered: Sequence[str]) -> Credential:
        headers: list[tuple[bytes, bytes]] = self.scope["headers"]
        if any(name == b"authorization" for name, _ in headers):
            return Credential(bearer(headers), self.address)
        ticket = next((p.removeprefix(TICKET_PREFIX) for p in offered if p.startswith(TICKET_PREFIX)), None)
        if ticket is None or PROTOCOL not in offered:
            bearer(headers)  # raises: no key was sent
        check_origin(headers)
        key_id, visit = await tickets.redeem(services_of(self.scope).pool, ticket or "")
        return Credential(key_id, self.address, visit)


async def deny(scope: dict[str, Any], send: Send, error: ApiError) -> None:
    """Refuse a socket with a proper HTTP answer, where the server can send one."""
    if "websocket.http.response" not in scope.get("extensions", {}):
        await send({"type": "websocket.close"})
        return
    fields = {"content-type": "application/json"} | error.all_headers()
    headers = [(name.encode(), value.encode()) for name, value in fields.items()]
    await send({"type": "websocket.http.response.start", "status": error.status, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": error.payload()})


def check_origin(headers: Sequence[tuple[bytes, bytes]]) -> None:
    """Only a page of this very host may open a socket with a ticket, or with its visitor's session: another site's
    script must use neither. Raises :class:`ApiError` 403.
    """
    values = {name: value.decode("latin-1") for name, value in headers if name in {b"origin", b"host"}}
    origin = urlsplit(values.get(b"origin", ""))
    if origin.scheme not in {"http", "https"} or origin.netloc.lower() != values.get(b"host", "").lower():
        raise ApiError(403, "origin_not_allowed", "This socket opens only from this site's own pages.")
