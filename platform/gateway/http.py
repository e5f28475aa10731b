from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from gateway.chat import Run
from gateway.errors import ApiError
from gateway.ratelimit import rate_limit_headers
from gateway.transport import Transport

Send = Callable[[dict[str, Any]], Awaitable[None]]

KEEPALIVE_SECONDS = 15.0
STALL_SECONDS = 60.0
"""A client that reads nothing for so long counts as gone."""

JSON_TYPE = "application/json"
EVENT_TYPE = "text/event-stream; charset=utf-8"


async def send_json(send: Send, status: int, body: bytes, headers: dict[str, str]) -> None:
    fields = {"content-type": JSON_TYPE, "content-length": str(len(body)), **headers}
    await send({"type": "http.response.start", "status": status, "headers": _encoded(fields)})
    await send({"type": "http.response.body", "body": body})


async def send_page(send: Send, status: int, page: bytes, headers: Sequence[tuple[bytes, bytes]]) -> None:
    fields = {"content-type": "text/html; charset=utf-8", "content-length": str(len(page)), "cache-control": "no-store"}
    more = {"x-content-type-options": "nosniff", "referrer-policy": "same-origin"}
    await send({"type": "http.response.start", "status": status, "headers": [*_encoded(fields | more), *headers]})
    await send({"type": "http.response.body", "body": page})


def _encoded(headers: dict[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode("latin-1"), value.encode("latin-1", "replace")) for name, value in headers.items()]


async def _error_headers(run: Run, error: ApiError) -> dict[str, str]:
    if error.status != 401:  # of nobody
        await run.look()
    return _run_headers(run) | error.all_headers()


def _run_headers(run: Run) -> dict[str, str]:
    headers = {
        "x-request-id": str(run.request_id),
        "openai-processing-ms": str(round((time.monotonic() - run.started) * 1000)),
        "cache-control": "no-store",
    }
    return headers | rate_limit_headers(run.limits)


class JsonTransport(Transport):
    """The whole answer as one JSON body."""

    def __init__(self, send: Send) -> None:
        self._send = send

    async def send(self, run: Run, chunks: Sequence[bytes]) -> None:
        (body,) = chunks
        await send_json(self._send, 200, body, _run_headers(run))

    async def finish(self, run: Run) -> None:
        pass

    async def fail(self, run: Run, error: ApiError) -> None:
        await send_json(self._send, error.status, error.payload(), await _error_headers(run, error))


class EventTransport(Transport):
    """Server-sent events. The status waits for the first chunk, so that an error before it has its own status.

    One timer per stream, which no token touches, watches for silence in both directions: a comment after
    :data:`KEEPALIVE_SECONDS` without an event, and cancellation of the owner after :data:`STALL_SECONDS` in which the
    client took nothing. The first comment opens the answer too; an error after it comes as an event.
    """

    def __init__(self, send: Send, run: Run) -> None:
        self._send = send
        self._run = run
        self._open = False
        self._closed = False
        self._sent_at = time.monotonic()
        self._sending_since: float | None = None
        self._loop = asyncio.get_running_loop()
        self._owner = asyncio.current_task()
        self._comment: asyncio.Task[None] | None = None
        self._timer = self._loop.call_later(KEEPALIVE_SECONDS, self._look)

    def close(self) -> None:
        """Stop the timer; the owner's last act."""
        self._closed = True
        self._timer.cancel()
        if self._comment is not None:
            self._comment.cancel()

    async def send(self, run: Run, chunks: Sequence[bytes]) -> None:
        await self._write(b"".join([b"data: %b\n\n" % chunk for chunk in chunks]))

    async def finish(self, run: Run) -> None:
        await self._write(b"data: [DONE]\n\n", more=False)

    async def fail(self, run: Run, error: ApiError) -> None:
        self.close()
        if self._open:
            # A client that reads nothing must not keep a stopped run's task alive.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(KEEPALIVE_SECONDS):
                    await self._write(b"data: %b\n\n" % error.payload(), more=False)
        else:
            self._open = True
            await send_json(self._send, error.status, error.payload(), await _error_headers(run, error))

    async def _write(self, data: bytes, *, more: bool = True) -> None:
        self._sending_since = time.monotonic()
        if not self._open:
            self._open = True
            headers = _run_headers(self._run) | {"content-type": EVENT_TYPE, "x-accel-buffering": "no"}
            await self._send({"type": "http.response.start", "status": 200, "headers": _encoded(headers)})
        await self._send({"type": "http.response.body", "body": data, "more_body": more})
        self._sent_at = time.monotonic()
        self._sending_since = None

    def _look(self) -> None:
        if self._closed:
            return
        now = time.monotonic()
        if self._sending_since is not None:
            if now - self._sending_since >= STALL_SECONDS and self._owner is not None:
                self._owner.cancel()
                return
            wait = KEEPALIVE_SECONDS
        else:
            wait = self._sent_at + KEEPALIVE_SECONDS - now
            if wait <= 0:
                self._comment = self._loop.create_task(self._write(b": keepalive\n\n"))
                wait = KEEPALIVE_SECONDS
        self._timer = self._loop.call_later(wait, self._look)
