from __future__ import annotations

from collections.abc import Callable
from typing import Any

from asgiref.sync import iscoroutinefunction
from django.http import HttpRequest, HttpResponse
from django.utils.decorators import sync_and_async_middleware

from gateway.ratelimit import limits_of, rate_limit_headers
from tenants import denials
from tenants.access import Access
from tenants.callers import Caller


@sync_and_async_middleware
def known_callers(get_response: Callable[[HttpRequest], Any]) -> Callable[[HttpRequest], Any]:
    """Middleware: OpenAI's own endpoints tell whose key they took of its limits, and what is refused to a key's holder
    is counted. Both need the services of a gateway process.
    """
    if not iscoroutinefunction(get_response):
        return get_response

    async def middleware(request: HttpRequest) -> HttpResponse:
        state: dict[str, Any] = getattr(request, "scope", {}).get("state", {})
        if "services" not in state:
            response: HttpResponse = await get_response(request)
            return response
        pool = state["services"].pool
        with denials.collected(pool):
            response = await get_response(request)
        who = getattr(request, "auth", None)
        if request.path.startswith("/v1/") and isinstance(who, Access | Caller):
            for name, value in rate_limit_headers(await limits_of(pool, who)).items():
                response[name] = value
        return response

    return middleware
