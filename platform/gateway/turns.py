"""How many requests Django works on at a time, in one process.

Each takes a connection as soon as it asks the database, and PostgreSQL has few: without a bound one burst takes
them from every tenant's pages and from the background tasks. Requests wait here with their body read and no connection.
Streams and admission do not come here: their connections are in a pool.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from asgiref.sync import sync_to_async
from django.conf import settings
from django.core.handlers.asgi import ASGIHandler
from django.db import connections
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase

from gateway import error_pages
from gateway.api_paths import is_api
from gateway.errors import ApiError, overloaded
from tenants.addresses import address_of

AT_ONCE = 16
OF_ONE = 4
"""Of one client: a session, a key, else an address. The others find places whatever it does."""

ASKING = 256
OF_ONE_ASKING = 48
"""With those that wait: a browser asks for some twenty files and parts of a page together."""


@dataclass(slots=True)
class _Client:
    places: asyncio.Semaphore
    asking: int = 0


class Turns:
    """Places in the order of asking, of each client a few at a time. Belongs to one event loop.

    :param at_once: places; :param of_one: of them for one client. :param asking: those that wait included;
        :param of_one_asking: of one client.
    """

    def __init__(
        self,
        at_once: int = AT_ONCE,
        of_one: int = OF_ONE,
        *,
        asking: int = ASKING,
        of_one_asking: int = OF_ONE_ASKING,
    ) -> None:
        self._places = asyncio.Semaphore(at_once)
        self._of_one = of_one
        self._most_asking = asking
        self._most_of_one = of_one_asking
        self._clients: dict[str, _Client] = {}
        self._asking = 0

    @asynccontextmanager
    async def taken(self, client: str) -> AsyncIterator[None]:
        """A place while it lasts. Raises :class:`~gateway.errors.ApiError` 503 at once where too many wait."""
        one = self._clients.setdefault(client, _Client(asyncio.Semaphore(self._of_one)))
        if one.asking >= self._most_of_one:
            raise overloaded("Too many of your requests are waiting; try again shortly.", 1.0)
        if self._asking >= self._most_asking:
            self._forget(client)
            raise overloaded("The server is busy; try again shortly.", 2.0)
        one.asking += 1
        self._asking += 1
        try:
            async with one.places, self._places:
                yield
        finally:
            one.asking -= 1
            self._asking -= 1
            self._forget(client)

    def _forget(self, client: str) -> None:
        if not self._clients[client].asking:
            del self._clients[client]


class PatientHandler(ASGIHandler):
    """Django, which begins with a request once it has a place: with its body read, before any middleware."""

    def __init__(self) -> None:
        super().__init__()
        self._turns: Turns | None = None

    async def get_response_async(self, request: HttpRequest) -> HttpResponseBase:
        if self._turns is None:
            self._turns = Turns()
        try:
            async with self._turns.taken(_client(request)):
                return await to_its_end(self._answer(request))
        except ApiError as error:
            return _refusal(request, error)

    async def _answer(self, request: HttpRequest) -> HttpResponseBase:
        response: HttpResponseBase = await super().get_response_async(request)
        if not response.streaming:
            # In the request's own thread. Django would do so when the answer is sent, however slowly that is read.
            await sync_to_async(connections.close_all, thread_sensitive=True)()
        return response


async def to_its_end(work: Coroutine[Any, Any, HttpResponseBase]) -> HttpResponseBase:
    """A client that leaves cancels its request, but not the thread that works on it: the place is taken until then."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        raise


def _client(request: HttpRequest) -> str:
    session = request.COOKIES.get(settings.SESSION_COOKIE_NAME)
    if session:
        return f"session {session}"
    key = request.META.get("HTTP_AUTHORIZATION")
    return f"key {key}" if key else f"address {address_of(request)}"


def _refusal(request: HttpRequest, error: ApiError) -> HttpResponse:
    api = is_api(request.path)
    body = error.payload() if api else error_pages.refused(error.status, error.message)
    kind = "application/json" if api else "text/html; charset=utf-8"
    return HttpResponse(body, status=error.status, content_type=kind, headers=error.all_headers())
