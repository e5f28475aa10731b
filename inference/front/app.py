"""The worker's ASGI application."""

from __future__ import annotations

import logging

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from inference.errors import InferenceError
from inference.front import adapters, completions, health, public_prefixes
from inference.front.errors import ApiError, api_error
from inference.front.service import Service

log = logging.getLogger(__name__)


def build_app(service: Service) -> Starlette:
    """Routes in vLLM's dialect; every error, also of the framework, in one shape."""
    routes = [
        Route("/v1/completions", completions.completions, methods=["POST"]),
        Route("/v1/chat/completions", completions.chat_completions, methods=["POST"]),
        Route("/v1/models", adapters.models, methods=["GET"]),
        Route("/v1/load_lora_adapter", adapters.load, methods=["POST"]),
        Route("/v1/unload_lora_adapter", adapters.unload, methods=["POST"]),
        Route("/v1/public_prefixes", public_prefixes.declare, methods=["POST"]),
        Route("/v1/public_prefixes", public_prefixes.listed, methods=["GET"]),
        Route("/v1/public_prefixes/{name}", public_prefixes.withdraw, methods=["DELETE"]),
        Route("/tokenize", adapters.tokenize, methods=["POST"]),
        Route("/detokenize", adapters.detokenize, methods=["POST"]),
        Route("/health", health.health, methods=["GET"]),
        Route("/metrics", health.metrics, methods=["GET"]),
    ]
    handlers = {
        ApiError: _on_api_error,
        InferenceError: _on_inference_error,
        HTTPException: _on_http_error,
        Exception: _on_bug,
    }
    app = Starlette(routes=routes, exception_handlers=handlers)  # type: ignore[arg-type]
    app.router.redirect_slashes = False
    app.state.service = service
    app.state.public_prefixes = {}
    app.state.health = health.HealthCheck(service)
    return app


async def _on_api_error(request: Request, error: ApiError) -> Response:
    return error.response()


async def _on_inference_error(request: Request, error: InferenceError) -> Response:
    return api_error(error).response()


async def _on_http_error(request: Request, error: HTTPException) -> Response:
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "http_error")
    return ApiError(error.status_code, f"{request.method} {request.url.path}: {error.detail}", code).response()


async def _on_bug(request: Request, error: Exception) -> Response:
    return ApiError(500, "The worker failed", "internal_error").response()
