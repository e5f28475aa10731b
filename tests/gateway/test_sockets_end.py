"""Sockets end, whatever arrives behind a close and however little their clients read: uvicorn's protocol and ours in
this process, without workers or a database.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from gateway import services as services_module
from gateway import socket_protocol, sockets
from gateway.auth import Credential
from gateway.errors import invalid_key
from gateway.services import Services
from gateway.sessions import Sessions
from gateway.socket_protocol import SocketProtocol
from gateway.sockets import SocketConsumer
from tenants.access import Access
from tenants.errors import InvalidKey
from tests.gateway.test_sessions import idle_services, some_access, until


@dataclass
class Server:
    port: int
    state: ServerState

    @asynccontextmanager
    async def client(self) -> AsyncIterator[ClientConnection]:
        """With small buffers below it: what it does not read is soon the server's."""
        raw = socket.socket()
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.connect(("127.0.0.1", self.port))
        headers = {"Authorization": "Bearer lpx_live_a_b"}
        address = f"ws://127.0.0.1:{self.port}/v1/ws"
        client = await connect(address, sock=raw, additional_headers=headers, compression=None)
        try:
            yield client
        finally:
            client.transport.abort()


@asynccontextmanager
async def serving(application: Any, ping: float | None = None, **state: Any) -> AsyncIterator[Server]:
    config = uvicorn.Config(
        application, ws=SocketProtocol, log_config=None, ws_ping_interval=ping, ws_ping_timeout=ping
    )
    config.load()
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    shared = ServerState()
    protocol: Any = config.http_protocol_class
    server = await asyncio.get_running_loop().create_server(
        lambda: protocol(config=config, server_state=shared, app_state=state), sock=listener
    )
    try:
        yield Server(listener.getsockname()[1], shared)
    finally:
        server.close()
        for connection in list(shared.connections):
            connection.transport.abort()
        await until(lambda: not shared.tasks)


@asynccontextmanager
async def gateway(services: Services, sessions: Sessions) -> AsyncIterator[Server]:
    async with serving(SocketConsumer.as_asgi(), services=services, sessions=sessions) as server:
        yield server


async def closed(client: ClientConnection) -> int | None:
    """With which code."""
    async with asyncio.timeout(5):
        with suppress(ConnectionClosed):
            while True:
                await client.recv()
    return client.close_code


async def stuck(consumer: SocketConsumer) -> None:
    """Say so much that nothing more is taken."""
    for _ in range(1000):
        try:
            async with asyncio.timeout(0.2):
                await consumer.put_text("x" * 10_000)
        except TimeoutError:
            return
    raise AssertionError("somebody reads it")


def send_together(client: ClientConnection, texts: list[str | bytes]) -> None:
    """In one piece, so that all have arrived before the first is answered."""
    for text in texts:
        if isinstance(text, bytes):
            client.protocol.send_binary(text)
        else:
            client.protocol.send_text(text.encode())
    client.transport.write(b"".join(client.protocol.data_to_send()))


PING = '{"type":"ping"}'
REQUEST = json.dumps({"type": "request", "id": "a", "body": {}})


@pytest.mark.parametrize(
    ("texts", "code"),
    [
        ([b"\x00", b"\x00"], 1003),
        ([b"\x00", PING], 1003),
        (["{"] * 40, 4400),
        ([REQUEST, REQUEST], 4401),
    ],
    ids=["binary", "text behind binary", "malformed", "revoked"],
)
async def test_what_arrives_behind_a_close_leaves_nothing_behind(
    texts: list[str | bytes], code: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    services = idle_services(some_access())
    sessions = Sessions(services)
    async with gateway(services, sessions) as server, server.client() as client:
        await client.send('{"type":"session"}')
        session = sessions.find(json.loads(await client.recv())["session"], 1)
        if code == 4401:

            async def of(credential: Credential) -> Access:
                raise InvalidKey

            monkeypatch.setattr(services.keys, "of", of)
        client.transport.pause_reading()  # so that it does not answer the close meanwhile
        send_together(client, texts)
        await until(lambda: not services.sockets and not session.connected)
        client.transport.resume_reading()
        assert await closed(client) == code
    session.end(4410, "the test is over")
    assert "Exception in ASGI application" not in caplog.text


async def test_a_socket_is_revoked_once() -> None:
    services = idle_services(some_access())
    async with gateway(services, Sessions(services)) as server, server.client() as client:
        (held,) = services._held()
        held.end(invalid_key())
        assert services._held() == []
        assert await closed(client) == 4401


async def test_a_revoked_socket_is_closed_once_its_client_reads_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what the client sends meanwhile begins nothing."""
    monkeypatch.setattr(sockets, "SHUT_SECONDS", 0.05)
    services = idle_services(some_access())
    async with gateway(services, Sessions(services)) as server, server.client() as client:
        client.transport.pause_reading()
        (consumer,) = services.sockets
        await stuck(consumer)
        (held,) = services._held()
        held.end(invalid_key())
        await until(lambda: consumer._shut)
        await asyncio.sleep(2 * sockets.SHUT_SECONDS)
        client.transport.resume_reading()
        assert await closed(client) == 4401


async def test_a_process_stops_though_a_client_reads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "SHUT_SECONDS", 0.1)
    services = idle_services(some_access())
    async with gateway(services, Sessions(services)) as server, server.client() as client, server.client() as reader:
        client.transport.pause_reading()
        (consumer,) = (one for one in services.sockets if one.scope["client"] == client.local_address)
        await stuck(consumer)
        await asyncio.wait_for(services.drain(0.1), 5)
        assert await closed(reader) == 1001


async def test_draining_has_a_deadline_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stuck:
        async def go_away(self) -> None:
            await asyncio.Event().wait()

    monkeypatch.setattr(services_module, "GOODBYE_SECONDS", 0.1)
    services = idle_services(some_access())
    services.sockets.add(Stuck())  # type: ignore[arg-type]
    await asyncio.wait_for(services.drain(0.1), 5)


# Beneath the application ----------------------------------------------------------------------------------------------


async def chatters(scope: dict[str, Any], receive: Any, send: Any) -> None:
    await receive()
    await send({"type": "websocket.accept"})
    while True:
        await send({"type": "websocket.send", "text": "x" * 10_000})


async def chatters_and_leaves(scope: dict[str, Any], receive: Any, send: Any) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(0.2):
            await chatters(scope, receive, send)


async def test_who_reads_and_answers_nothing_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket_protocol, "LAST_SECONDS", 0.1)
    async with serving(chatters, ping=0.2) as server, server.client() as client:
        client.transport.pause_reading()
        assert server.state.connections
        await until(lambda: not server.state.connections and not server.state.tasks)


@pytest.mark.parametrize("how", ["left", "stopped"])
async def test_a_closed_socket_ends_though_its_client_reads_nothing(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    monkeypatch.setattr(socket_protocol, "LAST_SECONDS", 0.1)
    application = chatters_and_leaves if how == "left" else chatters
    async with serving(application) as server, server.client() as client:
        client.transport.pause_reading()
        (connection,) = server.state.connections
        assert isinstance(connection, SocketProtocol)
        connection.close_timeout = 0.1
        if how == "stopped":
            await until(lambda: not connection.writable.is_set())
            connection.shutdown()
        await until(lambda: not server.state.connections and not server.state.tasks)
