from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Awaitable, Callable
from functools import partial
from types import FrameType
from typing import Any

from gateway.dialogue import answer_wire
from gateway.handover import Handover
from gateway.services import Services
from gateway.sessions import Sessions
from inference import heap

logger = logging.getLogger(__name__)

DRAIN_SECONDS = 20.0

Application = Callable[
    [dict[str, Any], Callable[[], Awaitable[Any]], Callable[[Any], Awaitable[None]]], Awaitable[None]
]


class Lifespan:
    """Opens the services before the first request, and drains before the server's own shutdown.

    The server, once told to stop, may cancel streams and end without running what stands in ``finally``. So the first
    SIGTERM or SIGINT is taken here: no new requests, running ones finish or are stopped and settled, and only then the
    server's own handler is called. A second signal goes to the server at once.
    """

    def __init__(self, application: Application) -> None:
        self._application = application

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "lifespan":
            await self._application(scope, receive, send)
            return
        await receive()
        try:
            services = await Services.start()
        except Exception as error:
            logger.exception("the gateway cannot start")
            await send({"type": "lifespan.startup.failed", "message": f"{type(error).__name__}: {error}"})
            return
        scope["state"]["services"] = services
        sessions = scope["state"]["sessions"] = Sessions(services)
        sessions.handover = Handover(sessions.holder, partial(answer_wire, services, sessions))
        await sessions.handover.start()
        _drain_on_signals(services)
        heap.settle()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await sessions.handover.close()
        await services.close()
        await send({"type": "lifespan.shutdown.complete"})


def _drain_on_signals(services: Services) -> None:
    loop = asyncio.get_running_loop()
    server_handlers: dict[int, Any] = {}

    async def drain_then_stop(number: int, frame: FrameType | None) -> None:
        await services.drain(DRAIN_SECONDS)
        _pass_on(number, frame)

    def _pass_on(number: int, frame: FrameType | None) -> None:
        handler = server_handlers[number]
        if callable(handler):
            handler(number, frame)
        else:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    def on_signal(number: int, frame: FrameType | None) -> None:
        if services.draining:
            _pass_on(number, frame)
            return
        services.draining = True
        logger.info("draining")
        loop.call_soon_threadsafe(lambda: services.spawn(drain_then_stop(number, frame)))

    for number in (signal.SIGTERM, signal.SIGINT):
        try:
            server_handlers[number] = signal.signal(number, on_signal)
        except ValueError:  # not in the main thread: whoever runs the server there stops it in its own way
            return
