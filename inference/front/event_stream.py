"""One streamed answer on the wire: its head, its events, and a sign of life while there are none."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from starlette.responses import Response
from starlette.types import Send

from inference.front.errors import ApiError

QUIET_SECONDS = 20.0
"""After so much silence a stream says that it waits. Several fit into what the gateway bears before it takes a worker
for lost (:data:`inference.client.SILENCE_SECONDS`): one may be late, as asking the core takes up to its deadline."""

WAITING = b": waiting\n\n"
"""A comment: readers of server-sent events skip it."""

_HEADERS = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store"), (b"x-accel-buffering", b"no")]


class EventStream:
    """Sends the head with the first event, so that what fails before it gets its own status.

    A request may rightly wait for minutes, in the queue or having given way in mid-stream; its reader cannot tell that
    from a lost worker. So while the core is well, :data:`QUIET_SECONDS` of silence end with a comment, and before the
    first event with the head: what fails from then on is told by an event. A core that hangs brings no comments, and
    readers find out by the silence. Used as a context, inside which it watches.

    ``send`` waits while the client reads slowly, and one at a time may call it.

    :param computes: asked before a comment: whether the core is well.
    """

    def __init__(self, send: Send, computes: Callable[[], Awaitable[bool]]) -> None:
        self._send, self._computes = send, computes
        self._begun = self._ended = False
        self._turn = asyncio.Lock()
        self._spoke = _now()

    async def __aenter__(self) -> EventStream:
        self._watching = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._watching.cancel()
        await asyncio.gather(self._watching, return_exceptions=True)

    async def event(self, content: bytes, *, last: bool = False) -> None:
        async with self._turn:
            await self._put(content, last=last)

    async def fail(self, failure: ApiError) -> None:
        """The end of a stream that fails: a response of its own, or an event if the head has gone."""
        async with self._turn:
            if self._begun:
                await self._put(failure.event(), last=True)  # no [DONE]: the stream did not end well
            else:
                self._ended = True
                await plain(self._send, failure.response())

    async def _watch(self) -> None:
        wait = QUIET_SECONDS
        while True:
            await asyncio.sleep(wait)
            wait = self._spoke + QUIET_SECONDS - _now()
            if wait > 0:
                continue
            wait = QUIET_SECONDS
            if not await self._computes():
                continue
            async with self._turn:  # for which it may have waited, while the stream went on
                if not self._ended and _now() >= self._spoke + QUIET_SECONDS:
                    await self._put(WAITING)

    async def _put(self, content: bytes, *, last: bool = False) -> None:
        if not self._begun:
            self._begun = True
            await self._send({"type": "http.response.start", "status": 200, "headers": _HEADERS.copy()})
        self._ended = last
        await _body(self._send, content, last=last)
        self._spoke = _now()


async def plain(send: Send, response: Response) -> None:
    """A whole response."""
    await send({"type": "http.response.start", "status": response.status_code, "headers": response.raw_headers})
    await _body(send, bytes(response.body), last=True)


async def _body(send: Send, body: bytes, *, last: bool) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": not last})


def _now() -> float:
    return asyncio.get_running_loop().time()
