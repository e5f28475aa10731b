from __future__ import annotations

from collections.abc import Callable
from typing import Any

from asgiref.sync import iscoroutinefunction, sync_to_async
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed
from django.utils.decorators import sync_and_async_middleware

from gateway import error_pages
from gateway.api_paths import is_api


@sync_and_async_middleware
def page_for_methods(get_response: Callable[[HttpRequest], Any]) -> Callable[[HttpRequest], Any]:
    """Middleware: what Django's views answer to a method that they do not take says nothing; here it becomes a page.
    API paths' answers are the border's.
    """
    if iscoroutinefunction(get_response):

        async def later(request: HttpRequest) -> HttpResponse:
            response: HttpResponse = await get_response(request)
            if _empty(request, response):
                await sync_to_async(_fill)(request, response)
            return response

        return later

    def middleware(request: HttpRequest) -> HttpResponse:
        response: HttpResponse = get_response(request)
        if _empty(request, response):
            _fill(request, response)
        return response

    return middleware


def _empty(request: HttpRequest, response: HttpResponse) -> bool:
    return isinstance(response, HttpResponseNotAllowed) and not response.content and not is_api(request.path)


def _fill(request: HttpRequest, response: HttpResponse) -> None:
    """Not another response: this one knows what it allows, and that the log has heard of it."""
    page = error_pages.not_allowed(request)
    response.content = page.content
    for name, value in page.items():
        response[name] = value
