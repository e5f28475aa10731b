"""Every error leaves in one shape: ``{"error": {"message", "type", "param", "code"}}``."""

from __future__ import annotations

import math
from typing import Any

import orjson
from starlette.responses import Response

from inference.errors import (
    AdapterInvalid,
    AdapterNotFound,
    EngineDead,
    GrantRefused,
    InferenceError,
    InvalidRequest,
    Overloaded,
    UnknownField,
)


class ApiError(Exception):
    """An answer that is not 200, with everything the client is told."""

    def __init__(
        self, status: int, message: str, code: str, param: str | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.code, self.param = status, message, code, param
        self.retry_after = retry_after

    def body(self) -> dict[str, dict[str, Any]]:
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> Response:
        headers = {}
        if (seconds := self._whole_seconds()) is not None:
            headers["Retry-After"] = str(seconds)
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return Response(orjson.dumps(self.body()), self.status, headers, media_type="application/json")

    def event(self) -> bytes:
        """The same as a server-sent event, for a stream that has begun; with what ``Retry-After`` would say."""
        body = self.body()
        if (seconds := self._whole_seconds()) is not None:
            body["error"]["retry_after"] = seconds
        return b"data: " + orjson.dumps(body) + b"\n\n"

    def _whole_seconds(self) -> int | None:
        return None if self.retry_after is None else max(1, math.ceil(self.retry_after))


def api_error(error: InferenceError) -> ApiError:
    """What a client is told about one of our own errors."""
    if isinstance(error, Overloaded):
        return ApiError(503, str(error), "overloaded", retry_after=error.retry_after)
    if isinstance(error, InvalidRequest):
        code = "unknown_parameter" if isinstance(error, UnknownField) else "invalid_value"
        return ApiError(400, str(error), code, error.param)
    if isinstance(error, AdapterInvalid):
        return ApiError(400, str(error), "adapter_invalid", error.field)
    for kind, status, code in _ANSWERS:
        if isinstance(error, kind):
            return ApiError(status, str(error), code)
    return ApiError(500, "The worker failed", "internal_error")


_ANSWERS: tuple[tuple[type[InferenceError], int, str], ...] = (
    (GrantRefused, 403, "grant_refused"),
    (AdapterNotFound, 404, "model_not_found"),
    (EngineDead, 503, "engine_dead"),
)
