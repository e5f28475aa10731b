"""How many requests Django works on at a time, in one process.

Each takes a connection as soon as it asks the database, and PostgreSQL has few: without a bound one burst takes
them from every tenant's pages and from the background tasks. Requests wait here with their body read and no connection.
Streams and admission do not come here: their connections are in a pool.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any, NamedTuple

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


class Share(NamedTuple):
    """:param places: at a time. :param asking: with those that wait."""

    places: int
    asking: int


ALL = Share(16, 256)
OF_ONE = Share(4, 48)
"""Of one client: a key, a session, else an address. The others find places whatever it does. A browser asks for some
twenty files and parts of a page together."""

OF_ADDRESS = Share(12, 192)
"""Of all clients at one address. Keys and sessions have proved nothing yet: whoever makes them up has an address."""

HEALTH = "/health"
OF_PROBES = Share(8, 256)
OF_PROBER = Share(2, 16)
"""Whether the process is well has places of its own: a busy one that does not say so would be taken for dead."""


class _Party:
    """Who asks, or where they are, as long as they do."""

    def __init__(self, share: Share) -> None:
        self.places = asyncio.Semaphore(share.places)
        self.most_asking = share.asking
        self.asking = 0


class Turns:
    """Places in the order of asking, of each party a few at a time. Belongs to one event loop.

    :param all: of everybody. :param shares: of each party that a request names, in that order.
    """

    def __init__(self, all: Share, *shares: Share) -> None:
        self._all = _Party(all)
        self._shares = shares
        self._parties: dict[tuple[int, str], _Party] = {}

    @asynccontextmanager
    async def taken(self, *names: str) -> AsyncIterator[None]:
        """A place while it lasts. Raises :class:`~gateway.errors.ApiError` 503 at once where too many wait.

        :param names: of the parties, one for each of ``shares``.
        """
        keys = list(enumerate(names))
        parties = [self._parties.setdefault(key, _Party(share)) for key, share in zip(keys, self._shares, strict=True)]
        self._count(keys, 1)
        try:
            if any(party.asking > party.most_asking for party in parties):
                raise overloaded("Too many of your requests are waiting; try again shortly.", 1.0)
            if self._all.asking > self._all.most_asking:
                raise overloaded("The server is busy; try again shortly.", 2.0)
            async with AsyncExitStack() as place:
                for party in (*parties, self._all):
                    await place.enter_async_context(party.places)
                yield
        finally:
            self._count(keys, -1)

    def _count(self, keys: Sequence[tuple[int, str]], step: int) -> None:
        """Who asks for nothing is not remembered."""
        self._all.asking += step
        for key in keys:
            self._parties[key].asking += step
            if not self._parties[key].asking:
                del self._parties[key]


class PatientHandler(ASGIHandler):
    """Django, which begins with a request once it has a place: with its body read, before any middleware."""

    def __init__(self) -> None:
        super().__init__()
        self._turns: Turns | None = None
        self._probes: Turns | None = None

    async def get_response_async(self, request: HttpRequest) -> HttpResponseBase:
        try:
            async with self._place(request):
                return await to_its_end(self._answer(request))
        except ApiError as error:
            return _refusal(request, error)

    def _place(self, request: HttpRequest) -> AbstractAsyncContextManager[None]:
        address = str(address_of(request))
        if request.path == HEALTH:
            self._probes = self._probes or Turns(OF_PROBES, OF_PROBER)
            return self._probes.taken(address)
        self._turns = self._turns or Turns(ALL, OF_ONE, OF_ADDRESS)
        return self._turns.taken(_client(request, address), address)

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


def _client(request: HttpRequest, address: str) -> str:
    """By what counts: a key that is sent counts alone, whatever cookie comes along."""
    key = request.META.get("HTTP_AUTHORIZATION")
    if key:
        return f"key {key}"
    session = request.COOKIES.get(settings.SESSION_COOKIE_NAME)
    return f"session {session}" if session else f"nobody at {address}"


def _refusal(request: HttpRequest, error: ApiError) -> HttpResponse:
    api = is_api(request.path)
    body = error.payload() if api else error_pages.refused(error.status, error.message)
    kind = "application/json" if api else "text/html; charset=utf-8"
    return HttpResponse(body, status=error.status, content_type=kind, headers=error.all_headers())
