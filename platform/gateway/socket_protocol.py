"""uvicorn's WebSockets, for its ``--ws`` option."""

from __future__ import annotations

from typing import TYPE_CHECKING

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

if TYPE_CHECKING:
    from uvicorn._types import ASGISendEvent


class SocketProtocol(WebSocketsSansIOProtocol):
    """A socket that the application refuses with an HTTP answer is over with that answer.

    uvicorn 0.54 does not note it, and logs ``ERROR: ASGI callable returned without completing handshake.`` for every
    client with a wrong key (github.com/Kludex/uvicorn/pull/3138, open). This goes when uvicorn mends it.
    """

    async def send(self, message: ASGISendEvent) -> None:
        await super().send(message)
        if message["type"] == "websocket.http.response.body" and self.close_sent:
            self.handshake_complete = True
