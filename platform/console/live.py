"""``/console/live`` and ``/console/t/<tenant>/live``: what the overview shows of this moment, while somebody looks.

A socket is opened by a signed-in person's own page and sends ``{"html": …}`` every two seconds; it takes nothing.
However many look, one round for all of them looks into the database and asks the workers. Each round looks at every
session and membership again, so that a sign-out, a removal or a suspension ends a socket within seconds.

Close codes: 4400 a frame was sent · 4401 the session has ended, or the account may no longer be seen · 4429 too many
sockets · 1013 the database does not answer; try again. What may not be looked at at all is refused with 403.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections import Counter
from typing import Any

from channels.exceptions import StopConsumer  # type: ignore[import-untyped]
from channels.generic.websocket import AsyncWebsocketConsumer  # type: ignore[import-untyped]
from django.conf import settings
from django.http import parse_cookie

from console.lookers import Look
from console.sampler import Sampler

logger = logging.getLogger(__name__)

EVERY_SECONDS = 2.0
READ_SECONDS = 4.0
"""A page that does not take a message for so long is not looked at."""

MOST_OF_ONE_PERSON = 8
MOST_OF_ONE_TENANT = 64
MOST_SOCKETS = 256
"""In one process, as are the others."""

KEPT_FOR_OPERATORS = 32
"""Of :data:`MOST_SOCKETS`, for the platform's own page: operators look when much is amiss."""

UNASKED, ENDED, TOO_MANY, TRY_AGAIN = 4400, 4401, 4429, 1013


class LiveConsumer(AsyncWebsocketConsumer):  # type: ignore[misc]
    channel_layer_alias = "none"  # no layer: with Valkey away it still works

    async def dispatch(self, message: dict[str, Any]) -> None:
        """As Channels' own, without its clean-up of ORM connections: none is used here."""
        try:
            await getattr(self, message["type"].replace(".", "_"))(message)
        except OSError:  # nobody listens any more
            await self.websocket_disconnect(message)

    async def websocket_connect(self, message: dict[str, Any]) -> None:
        look = _look(self.scope)
        try:
            person = await AUDIENCE.person(look)
        except Exception:
            logger.exception("who looks cannot be found out")
            await self.accept()  # a close code reaches nobody before
            await self.shut(TRY_AGAIN, "try again")
            return
        if person is None:
            await self.close()
            raise StopConsumer
        await self.accept()
        refusal = AUDIENCE.enter(self, look, person)
        if refusal is not None:
            await self.shut(TOO_MANY, refusal)

    async def websocket_receive(self, message: dict[str, Any]) -> None:
        await self.shut(UNASKED, "nothing is taken here")

    async def websocket_disconnect(self, message: dict[str, Any]) -> None:
        AUDIENCE.leave(self)
        raise StopConsumer

    async def show(self, text: str) -> None:
        """Send, or end where nobody reads. Never raises."""
        try:
            async with asyncio.timeout(READ_SECONDS):
                await self.send(text)
        except (OSError, RuntimeError, TimeoutError):
            AUDIENCE.leave(self)
            await self.shut(1001, "nobody reads")

    async def shut(self, code: int, reason: str) -> None:
        AUDIENCE.leave(self)
        with contextlib.suppress(OSError, RuntimeError, TimeoutError):  # RuntimeError: it is being closed already
            async with asyncio.timeout(READ_SECONDS):
                await self.close(code, reason)


class Audience:
    """Who looks, in this process, and the one task that serves them all."""

    def __init__(self) -> None:
        self._open: dict[LiveConsumer, tuple[Look, int]] = {}
        self._sampler = Sampler()
        self._task: asyncio.Task[None] | None = None
        self._sending: set[asyncio.Task[None]] = set()
        self._busy: set[LiveConsumer] = set()

    async def person(self, look: Look) -> int | None:
        """The id of the user who may look there; ``None``: nobody. Raises what the database does."""
        return await self._sampler.person(look)

    def enter(self, consumer: LiveConsumer, look: Look, person: int) -> str | None:
        """``None``, or why there is no room, and what whoever looks can do."""
        refusal = self._refusal(look.slug, person)
        if refusal is None:
            self._open[consumer] = (look, person)
            if self._task is None or self._task.done():
                self._task = asyncio.create_task(self._serve())
        return refusal

    def _refusal(self, slug: str | None, person: int) -> str | None:
        """In as many bytes as a close frame may have. :param slug: of the tenant whose page it is."""
        people = Counter(who for _, who in self._open.values())
        tenants = Counter(look.slug for look, _ in self._open.values())
        if people[person] >= MOST_OF_ONE_PERSON:
            return "Too many of your pages are live: close one of the others, then reload this one."
        if slug is not None and tenants[slug] >= MOST_OF_ONE_TENANT:
            return "Too many pages of this account are live: reload this one once others are closed."
        # The platform's own page is operators': whatever tenants' pages take, some places are theirs.
        ours = tenants.total() - tenants[None]
        full = len(self._open) >= MOST_SOCKETS or (slug is not None and ours >= MOST_SOCKETS - KEPT_FOR_OPERATORS)
        return "Too many pages are live here: reload this one later." if full else None

    def leave(self, consumer: LiveConsumer) -> None:
        self._open.pop(consumer, None)

    async def _serve(self) -> None:
        """Rounds until nobody looks any more."""
        loop = asyncio.get_running_loop()
        while self._open:
            began = loop.time()
            await self._round()
            # A round that takes long is followed by a rest as long: looking must not be all that a process does.
            took = loop.time() - began
            await asyncio.sleep(max(EVERY_SECONDS - took, min(took, EVERY_SECONDS), 0.2))
            if not self._open:  # somebody may come while it rests
                await self._sampler.rest()

    async def _round(self) -> None:
        try:
            shown = await self._sampler.round({look for look, _ in self._open.values()})
        except Exception:
            logger.exception("nothing can be shown")
            for consumer in list(self._open):
                self._spawn(consumer, consumer.shut(TRY_AGAIN, "try again"))
            return
        for consumer, (look, _) in list(self._open.items()):
            if look not in shown:  # it came while the round ran
                continue
            html = shown[look]
            if html is None:
                self._spawn(consumer, consumer.shut(ENDED, "the session has ended"))
            elif consumer not in self._busy:
                self._spawn(consumer, consumer.show(json.dumps({"html": html})))

    def _spawn(self, consumer: LiveConsumer, work: Any) -> None:
        self._busy.add(consumer)
        task = asyncio.create_task(work)
        self._sending.add(task)

        def done(task: asyncio.Task[None]) -> None:
            self._sending.discard(task)
            self._busy.discard(consumer)

        task.add_done_callback(done)


AUDIENCE = Audience()


def _look(scope: dict[str, Any]) -> Look:
    cookies = b"; ".join(value for name, value in scope["headers"] if name == b"cookie").decode("latin-1")
    session = parse_cookie(cookies).get(settings.SESSION_COOKIE_NAME, "")
    client = scope.get("client")
    return Look(session, scope["url_route"]["kwargs"].get("tenant"), client[0] if client else None)
