"""uvicorn's WebSockets, for its ``--ws`` option."""

from __future__ import annotations

from asyncio import TimerHandle
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

if TYPE_CHECKING:
    from uvicorn._types import ASGISendEvent

LAST_SECONDS = 1.0
"""What is left to be sent to a client that answers no ping, or when the server stops, has so long."""


class SocketProtocol(WebSocketsSansIOProtocol):
    """A socket that the application refuses with an HTTP answer is over with that answer.

    uvicorn 0.54 does not note it, and logs ``ERROR: ASGI callable returned without completing handshake.`` for every
    client with a wrong key (github.com/Kludex/uvicorn/pull/3138, open). This goes when uvicorn mends it.

    And a socket that is closed ends. Closing a transport waits until its client has read what is left, for ever where
    that never reads: the connection stays, the application is not told, and the server does not stop.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._cut: TimerHandle | None = None

    async def send(self, message: ASGISendEvent) -> None:
        await super().send(message)
        if message["type"] == "websocket.http.response.body" and self.close_sent:
            self.handshake_complete = True

    def keepalive_timeout(self) -> None:
        super().keepalive_timeout()
        self._cut_in(LAST_SECONDS)

    def shutdown(self) -> None:
        super().shutdown()
        self._cut_in(LAST_SECONDS)

    async def run_asgi(self) -> None:
        try:
            await super().run_asgi()
        finally:
            self._cut_in(self.close_timeout + LAST_SECONDS)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._cut is not None:
            self._cut.cancel()

    def _cut_in(self, seconds: float) -> None:
        """Or sooner, if that was said before."""
        when = self.loop.time() + seconds
        if self.disconnected or (self._cut is not None and self._cut.when() <= when):
            return
        if self._cut is not None:
            self._cut.cancel()
        self._cut = self.loop.call_at(when, self.transport.abort)
