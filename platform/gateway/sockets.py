"""``/v1/ws``: one socket, many requests.

Frames are JSON texts. In: ``{"type": "request", "id", "body"}``, ``{"type": "cancel", "id"}``, ``{"type": "ping"}``.
Out: ``{"type": "chunk", "id", "data"}`` (OpenAI's chunks), then ``{"type": "done", "id"}`` (``"cancelled": true`` after
a cancel) or ``{"type": "error", "id", "error"}``; ``{"type": "pong"}``. An error whose ``id`` is null is about a frame
that had none.

Close codes: 1001 the server is going away · 1003 a binary frame · 1009 a frame too large · 4400 too many wrong frames ·
4401 the key is no longer valid.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import orjson
from channels.exceptions import StopConsumer  # type: ignore[import-untyped]
from channels.generic.websocket import AsyncWebsocketConsumer  # type: ignore[import-untyped]
from django.conf import settings

from gateway import tickets
from gateway.auth import bearer
from gateway.border import check_host
from gateway.chat import ClientGone, Run, Transport, serve
from gateway.consumers import services_of
from gateway.errors import ApiError, bad_request, error_of, shutting_down
from gateway.http import Send
from gateway.schemas import ChatRequest, parse, parse_json
from tenants.access import Access
from tenants.errors import InvalidKey

PROTOCOL = "loraplex.v1"
TICKET_PREFIX = "ticket."
MOST_REQUESTS = 32
"""Running requests of one socket."""

MOST_WRONG_FRAMES = 32
MOST_ID_CHARACTERS = 64
STALL_SECONDS = 60.0

GOING_AWAY, UNSUPPORTED_DATA, TOO_LARGE, WRONG_FRAMES, KEY_INVALID = 1001, 1003, 1009, 4400, 4401

_FIELDS = {"request": {"type", "id", "body"}, "cancel": {"type", "id"}, "ping": {"type"}}


class SocketConsumer(AsyncWebsocketConsumer):  # type: ignore[misc]
    """Programs send their key in ``Authorization``; browsers, which cannot, send a ticket as a subprotocol."""

    channel_layer_alias = "none"  # no layer: with Valkey away sockets still work

    def __init__(self) -> None:
        super().__init__()
        self._key: str | int = 0
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._wrong = 0

    async def dispatch(self, message: dict[str, Any]) -> None:
        """As Channels' own, without its clean-up of ORM connections, which would cost a thread hop per frame."""
        try:
            await getattr(self, message["type"].replace(".", "_"))(message)
        except OSError:  # nobody listens any more, or reads nothing for too long
            await self.websocket_disconnect(message)

    async def websocket_connect(self, message: dict[str, Any]) -> None:
        offered: list[str] = self.scope["subprotocols"]
        try:
            if services_of(self.scope).draining:
                raise shutting_down()
            check_host(self.scope["headers"])
            self._key = await self._credential(offered)
            await self._access()
        except Exception as error:
            await deny(self.scope, self.base_send, error_of(error))
            raise StopConsumer from None
        services_of(self.scope).sockets.add(self)
        await self.accept(PROTOCOL if PROTOCOL in offered else None)

    async def websocket_disconnect(self, message: dict[str, Any]) -> None:
        services_of(self.scope).sockets.discard(self)
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise StopConsumer

    async def websocket_receive(self, message: dict[str, Any]) -> None:
        text: str | None = message.get("text")
        if text is None:
            await self.close(UNSUPPORTED_DATA, "frames have to be text")
        elif len(text.encode(errors="replace")) > settings.MAX_BODY_BYTES:
            await self.close(TOO_LARGE, f"a frame may have {settings.MAX_BODY_BYTES} bytes")
        else:
            await self._frame(text)

    async def go_away(self) -> None:
        """Close because the process stops; running requests were stopped before."""
        await self.close(GOING_AWAY, "the server is shutting down")

    async def put(self, frame: dict[str, Any]) -> None:
        await self.put_text(orjson.dumps(frame).decode())

    async def put_text(self, text: str) -> None:
        """Raises ``TimeoutError`` when the client reads nothing for :data:`STALL_SECONDS`."""
        async with asyncio.timeout(STALL_SECONDS):
            await self.base_send({"type": "websocket.send", "text": text})

    async def _credential(self, offered: Sequence[str]) -> str | int:
        headers: list[tuple[bytes, bytes]] = self.scope["headers"]
        if any(name == b"authorization" for name, _ in headers):
            return bearer(headers)
        ticket = next((p.removeprefix(TICKET_PREFIX) for p in offered if p.startswith(TICKET_PREFIX)), None)
        if ticket is None or PROTOCOL not in offered:
            bearer(headers)  # raises: no key was sent
        _check_origin(headers)
        return await tickets.redeem(services_of(self.scope).pool, ticket or "")

    async def _access(self) -> Access:
        keys = services_of(self.scope).keys
        return await (keys.access(self._key) if isinstance(self._key, str) else keys.of_key(self._key))

    async def _frame(self, text: str) -> None:
        identity: str | None = None
        well_formed = False
        try:
            frame = _object(text)
            kind = _kind(frame)
            if kind == "ping":
                await self.put({"type": "pong"})
                return
            identity = _identity(frame)
            well_formed = True
            self._wrong = 0
            if kind == "cancel":
                task = self._tasks.get(identity)
                if task is not None:  # otherwise it has just ended by itself
                    task.cancel()
            else:
                await self._request(identity, frame)
        except InvalidKey as error:
            await self.put({"type": "error", "id": identity, **error_of(error).body})
            await self.close(KEY_INVALID, "the key is no longer valid")
        except OSError:
            raise
        except Exception as error:
            await self.put({"type": "error", "id": identity, **error_of(error).body})
            if well_formed:
                return  # a request that is refused is no misuse of the socket: others may be running on it
            self._wrong += 1
            if self._wrong > MOST_WRONG_FRAMES:
                await self.close(WRONG_FRAMES, "too many wrong frames")

    async def _request(self, identity: str, frame: dict[str, Any]) -> None:
        if identity in self._tasks:
            raise bad_request(f"A request {identity!r} is still running on this socket.", "id")
        if len(self._tasks) >= MOST_REQUESTS:
            message = f"A socket runs at most {MOST_REQUESTS} requests at once."
            raise ApiError(429, "concurrency_limit_exceeded", message, retry_after=1.0)
        if "body" not in frame:
            raise bad_request("body is required.", "body", "missing_required_parameter")
        access = await self._access()
        body = frame["body"]
        if isinstance(body, dict) and body.get("stream") is None:
            body = {**body, "stream": True}
        request = parse(ChatRequest, body)
        if request.stream is False:
            raise bad_request("stream: a socket always streams.", "stream")
        run = Run(services_of(self.scope), access, request)
        task = asyncio.create_task(self._answer(identity, run))
        self._tasks[identity] = task
        task.add_done_callback(lambda _: self._tasks.pop(identity, None))

    async def _answer(self, identity: str, run: Run) -> None:
        try:
            await serve(run, FrameTransport(self, identity), stream=True)
        except asyncio.CancelledError:
            # Either the client asked for it or its socket is gone; the first wants to know.
            if self in services_of(self.scope).sockets:
                with contextlib.suppress(OSError):
                    await self.put({"type": "done", "id": identity, "cancelled": True})
            raise


class FrameTransport(Transport):
    """Chunks as frames of one request on a socket."""

    def __init__(self, socket: SocketConsumer, identity: str) -> None:
        self._socket = socket
        self._identity = identity
        self._before = '{"type":"chunk","id":' + orjson.dumps(identity).decode() + ',"data":'

    async def send(self, run: Run, chunks: Sequence[bytes]) -> None:
        for chunk in chunks:
            await self._put(self._before + chunk.decode() + "}")

    async def finish(self, run: Run) -> None:
        await self._put(orjson.dumps({"type": "done", "id": self._identity}).decode())

    async def fail(self, run: Run, error: ApiError) -> None:
        await self._put(orjson.dumps({"type": "error", "id": self._identity, **error.body}).decode())

    async def _put(self, text: str) -> None:
        try:
            await self._socket.put_text(text)
        except OSError as error:  # the server's word for a client that left; a stall is one too
            raise ClientGone from error


async def deny(scope: dict[str, Any], send: Send, error: ApiError) -> None:
    """Refuse a socket with a proper HTTP answer, where the server can send one."""
    if "websocket.http.response" not in scope.get("extensions", {}):
        await send({"type": "websocket.close"})
        return
    fields = {"content-type": "application/json"} | error.all_headers()
    headers = [(name.encode(), value.encode()) for name, value in fields.items()]
    await send({"type": "websocket.http.response.start", "status": error.status, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": error.payload()})


def _object(text: str) -> dict[str, Any]:
    frame = parse_json(text)
    if not isinstance(frame, dict):
        raise bad_request("A frame has to be a JSON object.")
    return frame


def _kind(frame: dict[str, Any]) -> str:
    kind = frame.get("type")
    if not isinstance(kind, str):
        raise bad_request("type has to be a string.", "type")
    if kind not in _FIELDS:
        raise bad_request(f"Unknown frame type {kind[:64]!r}.", "type")
    unknown = sorted(set(frame) - _FIELDS[kind])
    if unknown:
        raise bad_request(f"Unrecognized frame field: {unknown[0][:64]}", unknown[0][:64], "unknown_parameter")
    return kind


def _identity(frame: dict[str, Any]) -> str:
    identity = frame.get("id")
    if not isinstance(identity, str) or not 1 <= len(identity) <= MOST_ID_CHARACTERS:
        raise bad_request(f"id has to be a string of 1 to {MOST_ID_CHARACTERS} characters.", "id")
    return identity


def _check_origin(headers: Sequence[tuple[bytes, bytes]]) -> None:
    """A ticket works only from a page of this very host: another site's script must not use one it got hold of."""
    values = {name: value.decode("latin-1") for name, value in headers if name in {b"origin", b"host"}}
    origin = urlsplit(values.get(b"origin", ""))
    if origin.scheme not in {"http", "https"} or origin.netloc.lower() != values.get(b"host", "").lower():
        raise ApiError(403, "origin_not_allowed", "A ticket is valid only from this site's own pages.")
