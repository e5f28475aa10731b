from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any, Protocol

import orjson

from gateway import frames
from gateway.chat import Run
from gateway.errors import ApiError, bad_request
from gateway.parsing import parse
from gateway.schemas import ChatRequest
from gateway.services import Services
from gateway.transport import ClientGone, Transport, serve
from tenants.access import Access

MOST_REQUESTS = 32
"""Running requests of one socket or session."""


class Outlet(Protocol):
    """Where the frames of requests go: a connection, or a session that outlives connections."""

    async def put(self, frame: bytes) -> None:
        """In order. Waits while the client is slow. Raises ``OSError`` when nobody will ever read it."""


class Conversation:
    """The running requests of one client, by the client's own names for them."""

    def __init__(self, services: Services, outlet: Outlet) -> None:
        self.outlet = outlet
        self._services = services
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._ended = False

    @property
    def running(self) -> list[str]:
        return list(self._tasks)

    def begin(self, identity: str, access: Access, body: Any) -> None:
        """Raises :class:`~gateway.errors.ApiError` for what can be refused at once."""
        if identity in self._tasks:
            raise bad_request(f"A request {identity!r} is still running on this socket.", "id")
        if len(self._tasks) >= MOST_REQUESTS:
            message = f"A socket runs at most {MOST_REQUESTS} requests at once."
            raise ApiError(429, "concurrency_limit_exceeded", message, retry_after=1.0)
        if body is None:
            raise bad_request("body is required.", "body", "missing_required_parameter")
        if isinstance(body, dict) and body.get("stream") is None:
            body = {**body, "stream": True}
        request = parse(ChatRequest, body)
        if request.stream is False:
            raise bad_request("stream: a socket always streams.", "stream")
        task = asyncio.create_task(self._answer(identity, Run(self._services, access, request)))
        self._tasks[identity] = task
        task.add_done_callback(lambda _: self._tasks.pop(identity, None))

    def cancel(self, identity: str) -> None:
        """Without effect when it has just ended by itself, or was cancelled: its last word may be waiting for room."""
        task = self._tasks.get(identity)
        if task is not None and not task.cancelling():
            task.cancel()

    async def last_words(self, seconds: float) -> None:
        """Wait until every request has said how it ended, but not longer."""
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=seconds)

    async def end(self) -> None:
        """Stop everything: nobody reads the answers any more."""
        self._ended = True
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _answer(self, identity: str, run: Run) -> None:
        try:
            await serve(run, _FrameTransport(self.outlet, identity), stream=True)
        except asyncio.CancelledError:
            if not self._ended:  # the client asked for it, and wants to know
                with contextlib.suppress(OSError):
                    await self.outlet.put(frames.of_done(identity, cancelled=True))
            raise


class _FrameTransport(Transport):
    """Chunks as frames of one request."""

    def __init__(self, outlet: Outlet, identity: str) -> None:
        self._outlet = outlet
        self._identity = identity
        self._before = b'{"type":"chunk","id":' + orjson.dumps(identity) + b',"data":'

    async def send(self, run: Run, chunks: Sequence[bytes]) -> None:
        for chunk in chunks:
            await self._put(self._before + chunk + b"}")

    async def finish(self, run: Run) -> None:
        await self._put(frames.of_done(self._identity))

    async def fail(self, run: Run, error: ApiError) -> None:
        await self._put(frames.of_error(self._identity, error))

    async def _put(self, frame: bytes) -> None:
        try:
            await self._outlet.put(frame)
        except OSError as error:  # the server's word for a client that left; a stall is one too
            raise ClientGone from error
