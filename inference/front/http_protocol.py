"""uvicorn's HTTP/1.1, with the bounds that it leaves to a proxy."""

from __future__ import annotations

import asyncio
from typing import cast

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from inference.front.errors import ApiError

MAX_HEAD_BYTES = 64 * 1024


class BoundedProtocol(HttpToolsProtocol):
    """One connection whose requests' heads (request line and headers) are bounded in time and size.

    A head that is not complete ``head_seconds`` after the connection was made, or after its own first byte, is answered
    with 408; one that grows past :data:`MAX_HEAD_BYTES` with 431; one that is no HTTP with 400. The connection ends.
    """

    head_seconds = 10.0
    _head_timer: asyncio.TimerHandle | None = None
    _head_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(cast(asyncio.Transport, transport))
        self._head_begins()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_ends()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._head_timer is not None and not self.transport.is_closing():
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self._refuse(ApiError(431, f"The headers exceed {MAX_HEAD_BYTES} bytes", "headers_too_large"))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head_begins()

    def on_headers_complete(self) -> None:
        self._head_ends()
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        """In the shape of every other error."""
        self._refuse(ApiError(400, msg, "invalid_http"))

    def _head_begins(self) -> None:
        if self._head_timer is None:
            self._head_bytes = 0
            self._head_timer = self.loop.call_later(self.head_seconds, self._too_late)

    def _head_ends(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _too_late(self) -> None:
        self._refuse(ApiError(408, f"The headers did not arrive within {self.head_seconds:g} s", "request_timeout"))

    def _refuse(self, error: ApiError) -> None:
        self._head_ends()
        # Never into the middle of an answer that is still being sent.
        if not self.transport.is_closing() and (self.cycle is None or self.cycle.response_complete):
            response = error.response()
            response.headers["Connection"] = "close"
            fields = b"".join(b"%b: %b\r\n" % field for field in response.raw_headers)
            self.transport.write(STATUS_LINE[error.status] + fields + b"\r\n" + bytes(response.body))
        self.transport.close()
