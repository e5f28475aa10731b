"""Runs the front: signals, draining, and what happens when the core dies."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Callable, Iterator

import uvicorn
from starlette.applications import Starlette

from inference import heap
from inference.errors import ConfigError
from inference.front.app import build_app
from inference.front.http_protocol import BoundedProtocol
from inference.front.service import Service
from inference.versions import engine_version

log = logging.getLogger(__name__)

UNREAD_MILLISECONDS = 120_000
"""How long a client may leave what was sent to it unread, or vanish without a word, before the kernel cuts it off."""

TELL_SECONDS = 5.0
"""How long streams may take to receive their last event before the connections are cut."""


def bind(host: str, port: int) -> socket.socket:
    """A bound socket, before anything slow starts; raises :class:`ConfigError` when the address cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol said outright: asyncio switches Nagle's algorithm off only where it reads IPPROTO_TCP, and with
    # it on, whatever follows an answer's head waits 40 ms for the client's delayed acknowledgement.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux; connections inherit it from the listener
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNREAD_MILLISECONDS)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
    except OverflowError as error:
        listener.close()
        raise ConfigError(f"cannot listen on {host}:{port}: ports go up to 65535") from error
    return listener


class _Server(uvicorn.Server):
    """Signals are ours: uvicorn's own handling would end the process before the drain."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(service: Service, listener: socket.socket, *, drain_seconds: float, ready: Callable[[], None]) -> int:
    """Serve until a signal or the core's death; the exit status: 0 after a drain, 1 when the core died."""
    server = _server(build_app(service))
    running = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started and not running.done():  # noqa: ASYNC110 - uvicorn has no event for it
        await asyncio.sleep(0.01)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    if server.started:
        heap.settle()
        ready()
    asked, died = asyncio.create_task(stop.wait()), asyncio.create_task(service.link.dead.wait())
    await asyncio.wait({asked, died, running}, return_when=asyncio.FIRST_COMPLETED)
    if asked.done() and not died.done():
        await _drain(service, drain_seconds, died)
    status = 1 if service.link.dead.is_set() else 0
    if status:
        log.error("the core has died; streams are told, then the worker exits")
    service.draining = True
    asked.cancel()
    died.cancel()
    server.should_exit = True
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(asyncio.shield(running), TELL_SECONDS)
    server.force_exit = True
    await running
    return status


async def _drain(service: Service, seconds: float, died: asyncio.Task[bool]) -> None:
    """Refuse new requests, let running ones end, abort what is left at the deadline."""
    service.draining = True
    log.info("draining: %d requests are running", service.link.active)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while service.link.active and not died.done() and loop.time() < deadline:  # noqa: ASYNC110 - a drain can be lazy
        await asyncio.sleep(0.02)
    service.link.abandon("The worker shut down before the request ended")


def _server(app: Starlette) -> _Server:
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # a stranger's garbage is not worth a line each
    return _Server(
        uvicorn.Config(
            app,
            http=BoundedProtocol,
            ws="none",
            lifespan="off",
            access_log=False,
            log_config=None,
            server_header=False,
            headers=[("Server", f"loraplex/{engine_version()}")],
            timeout_graceful_shutdown=int(TELL_SECONDS),
        )
    )


def address(listener: socket.socket) -> str:
    """The address to be reached at, as the ready line names it."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
