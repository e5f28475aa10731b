"""One mapping from every exception to what a client sees: ``{"error": {"message", "type", "param", "code"}}``."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, field
from typing import Any

import orjson
import psycopg
from django.core.exceptions import ValidationError
from django.db import InterfaceError, OperationalError
from psycopg_pool import PoolTimeout

from fleet.errors import NoWorker
from inference import errors as inference_errors
from tenants import errors as tenants_errors

logger = logging.getLogger(__name__)

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
}


@dataclass(eq=False)
class ApiError(Exception):
    """An error as the client gets it.

    :param status: HTTP status it has before a stream starts; inside a stream there is none.
    :param param: the field at fault, in the request's own words.
    :param retry_after: seconds after which the same request may succeed.
    """

    status: int
    code: str | None
    message: str
    param: str | None = None
    retry_after: float | None = None
    headers: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.message

    @property
    def type(self) -> str:
        fallback = "server_error" if self.status >= 500 else "invalid_request_error"
        return _TYPES.get(self.status, fallback)

    @property
    def body(self) -> dict[str, Any]:
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}

    def payload(self) -> bytes:
        return orjson.dumps(self.body)

    def all_headers(self) -> dict[str, str]:
        headers = dict(self.headers)
        if self.status == 401:
            headers["www-authenticate"] = "Bearer"
        if self.retry_after is not None:
            headers["retry-after"] = str(max(1, math.ceil(self.retry_after)))
            headers["retry-after-ms"] = str(max(1, math.ceil(self.retry_after * 1000)))
        return headers


def bad_request(message: str, param: str | None = None, code: str | None = "invalid_value") -> ApiError:
    return ApiError(400, code, message, param)


def not_found(path: str) -> ApiError:
    return ApiError(404, "unknown_url", f"There is nothing at {path}.")


def method_not_allowed(method: str, path: str, allowed: str) -> ApiError:
    return ApiError(405, "method_not_allowed", f"{method} is not possible at {path}.", headers={"allow": allowed})


def upgrade_required(path: str) -> ApiError:
    headers = {"upgrade": "websocket", "connection": "upgrade"}
    return ApiError(426, "upgrade_required", f"{path} is a WebSocket.", headers=headers)


def body_too_large(limit: int) -> ApiError:
    return ApiError(413, "request_too_large", f"The request is larger than {limit} bytes.")


def body_too_late(seconds: float) -> ApiError:
    return ApiError(408, "request_timeout", f"The body did not arrive within {seconds:g} s.")


def invalid_key(message: str = "Incorrect API key provided.") -> ApiError:
    return ApiError(401, "invalid_api_key", message)


def signed_out() -> ApiError:
    """What ends the playground of somebody who was signed in."""
    return ApiError(401, "signed_out", "You were signed out, or may no longer use this account's playground.")


def overloaded(message: str, retry_after: float = 1.0) -> ApiError:
    return ApiError(503, "overloaded", message, retry_after=retry_after)


def shutting_down() -> ApiError:
    return overloaded("The server is shutting down; try again.", retry_after=2.0)


def internal_error() -> ApiError:
    return ApiError(500, "internal_error", "The server had an error while processing the request.")


def code_of(error: BaseException) -> str:
    """Of what :func:`error_of` would tell the client, without its line in the log."""
    expected = isinstance(error, ApiError | tenants_errors.TenantsError | inference_errors.InferenceError | NoWorker)
    return (error_of(error).code if expected else None) or "internal_error"


def error_of(error: BaseException) -> ApiError:
    """What the client is told about ``error``. Anything not raised on purpose is logged and says nothing of itself."""
    match error:
        case ApiError():
            found = error
        case tenants_errors.TenantsError():
            found = _tenant(error)
        case NoWorker():
            found = overloaded(str(error), error.retry_after)
        case inference_errors.InferenceError():
            found = _upstream(error)
        case ValidationError():
            found = _validation(error)
        case psycopg.OperationalError() | psycopg.InterfaceError() | PoolTimeout():
            logger.error("the database cannot be reached: %s", error)
            found = overloaded("The service cannot take requests at the moment; try again shortly.", 2.0)
        case OperationalError() | InterfaceError():
            logger.error("the database cannot be reached: %s", error)
            found = overloaded("The service cannot take requests at the moment; try again shortly.", 2.0)
        case _:
            logger.error("unexpected error", exc_info=error)
            found = internal_error()
    return found


def _tenant(error: tenants_errors.TenantsError) -> ApiError:
    param = getattr(error, "param", None)
    match error:
        case tenants_errors.InvalidKey():
            found = invalid_key(str(error))
        case tenants_errors.ModelNotFound():
            found = ApiError(404, "model_not_found", str(error), "model")
        case tenants_errors.NotFound():
            found = ApiError(404, "not_found", str(error), param)
        case tenants_errors.Invalid() | tenants_errors.AdapterRefused():
            found = bad_request(str(error), param)
        case tenants_errors.Conflict():
            found = ApiError(409, error.code, str(error), param)
        case tenants_errors.Forbidden():
            found = ApiError(403, error.code, str(error))
        case tenants_errors.Denied():
            found = _denied(error)
        case tenants_errors.NotConfigured():
            logger.error("not configured: %s", error)
            found = overloaded("The service cannot do this at the moment; try again shortly.", 5.0)
        case _:
            logger.error("unexpected error", exc_info=error)
            found = internal_error()
    return found


def _denied(error: tenants_errors.Denied) -> ApiError:
    code = "invalid_api_key" if error.code == "key_revoked" else error.code
    # Waiting for a quota takes hours, and a request that no bucket can hold will never fit.
    hopeless = error.code == "insufficient_quota" or (error.status == 429 and error.retry_after is None)
    headers = {"x-should-retry": "false"} if hopeless else {}
    return ApiError(error.status, code, error.message, error.param, retry_after=error.retry_after, headers=headers)


def _validation(error: ValidationError) -> ApiError:
    """Django's own, of a model's ``full_clean``: the first field at fault."""
    if hasattr(error, "error_dict"):
        field, messages = next(iter(error.message_dict.items()))
        return bad_request(f"{field}: {' '.join(messages)}", None if field == "__all__" else field)
    return bad_request(" ".join(error.messages))


def _upstream(error: inference_errors.InferenceError) -> ApiError:
    match error:
        case inference_errors.InvalidRequest():
            return bad_request(str(error), error.param)
        case inference_errors.Overloaded():
            return overloaded("All workers are busy; try again shortly.", error.retry_after)
        case inference_errors.WorkerUnavailable() | inference_errors.EngineDead():
            logger.warning("worker lost: %s", error)
            return ApiError(502, "worker_lost", "The worker that computed this request was lost.", retry_after=1.0)
        case inference_errors.AdapterNotFound() | inference_errors.AdapterInvalid():
            logger.error("a worker cannot load an admitted adapter: %s", error)
            return ApiError(502, "adapter_unavailable", "The adapter cannot be loaded at the moment.", "model")
        case _:
            logger.error("a worker refused an admitted request: %s: %s", type(error).__name__, error)
            return ApiError(502, "worker_error", "The worker could not process the request.")
