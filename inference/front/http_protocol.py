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
    with 408; one that grows past :data:`MAX_HEAD_BYTES` with 431; one that is no HTTP with 400. The connection ends. So
    does one whose request was answered before its body was there, if the rest takes longer than ``head_seconds``.
    """

    head_seconds = 10.0
    _timer: asyncio.TimerHandle | None = None
    _in_head = True
    _head_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(cast(asyncio.Transport, transport))
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self._refuse(ApiError(431, f"The headers exceed {MAX_HEAD_BYTES} bytes", "headers_too_large"))
        elif self._answered and self.timeout_keep_alive_task is None:
            self._start_timer()  # uvicorn has stopped its own for these bytes and starts none again

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if not self._in_head:
            self._in_head, self._head_bytes = True, 0
            self._stop_timer()
        self._start_timer()

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._stop_timer()
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        """In the shape of every other error."""
        self._refuse(ApiError(400, msg, "invalid_http"))

    @property
    def _answered(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _start_timer(self) -> None:
        """Unless it runs: a byte now and then is no progress."""
        if self._timer is None:
            self._timer = self.loop.call_later(self.head_seconds, self._too_late)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_late(self) -> None:
        if self._in_head:
            self._refuse(ApiError(408, f"The headers did not arrive within {self.head_seconds:g} s", "request_timeout"))
        else:
            self.transport.close()

    def _refuse(self, error: ApiError) -> None:
        self._stop_timer()
        if not self.transport.is_closing() and self._answered:  # never into the middle of an answer
            response = error.response()
            response.headers["Connection"] = "close"
            fields = b"".join(b"%b: %b\r\n" % field for field in response.raw_headers)
            self.transport.write(STATUS_LINE[error.status] + fields + b"\r\n" + bytes(response.body))
        self.transport.close()
