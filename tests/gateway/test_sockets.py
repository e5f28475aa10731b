"""One socket, many requests: programs with a key, browsers with a ticket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import websockets
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.gateway.house import Actor, House, Process, started_gateway, wait_for

PROTOCOL = "loraplex.v1"
DEEP: Any = json.loads("[" * 900 + "]" * 900)


def address(gateway: Process) -> str:
    return gateway.url.replace("http", "ws") + "/v1/ws"


@asynccontextmanager
async def program(gateway: Process, actor: Actor) -> AsyncIterator[ClientConnection]:
    async with connect(address(gateway), additional_headers=actor.headers) as socket:
        yield socket


async def ticket_of(gateway: Process, actor: Actor) -> str:
    async with (
        aiohttp.ClientSession() as session,
        session.post(gateway.url + "/api/ws-tickets", headers=actor.headers) as answer,
    ):
        assert answer.status == 201
        return (await answer.json())["ticket"]


def browser(gateway: Process, ticket: str, origin: str | None = "own") -> Any:
    origin = gateway.url if origin == "own" else origin
    protocols = [websockets.Subprotocol(PROTOCOL), websockets.Subprotocol(f"ticket.{ticket}")]
    return connect(address(gateway), subprotocols=protocols, origin=origin)  # type: ignore[arg-type]


def request(house: House, identity: str, **fields: Any) -> str:
    body = {"model": house.base.name, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5} | fields
    return json.dumps({"type": "request", "id": identity, "body": body})


async def receive(socket: ClientConnection) -> dict[str, Any]:
    return json.loads(await asyncio.wait_for(socket.recv(), 10))


async def until_end(socket: ClientConnection, *identities: str) -> dict[str, list[dict[str, Any]]]:
    """Frames of each request up to its done or error."""
    frames: dict[str, list[dict[str, Any]]] = {identity: [] for identity in identities}
    open_ones = set(identities)
    while open_ones:
        frame = await receive(socket)
        frames[frame["id"]].append(frame)
        if frame["type"] in {"done", "error"}:
            open_ones.discard(frame["id"])
    return frames


def text_of(frames: list[dict[str, Any]]) -> str:
    choices = [frame["data"]["choices"] for frame in frames if frame["type"] == "chunk"]
    return "".join(choice[0]["delta"].get("content", "") for choice in choices if choice)


async def test_many_requests_on_one_socket(gateway: Process, house: House, acme: Actor) -> None:
    async with program(gateway, acme) as socket:
        names = [f"r{number}" for number in range(8)]
        for name in names:
            await socket.send(request(house, name, stream_options={"include_usage": True}))
        frames = await until_end(socket, *names)
        for name in names:
            assert text_of(frames[name]) == " 0 1 2 3 4"
            assert frames[name][-1] == {"type": "done", "id": name}
            assert frames[name][-2]["data"]["usage"]["completion_tokens"] == 5
    assert len(house.ledger(acme)) == 8


async def test_cancel(gateway: Process, house: House, acme: Actor) -> None:
    async with program(gateway, acme) as socket:
        await socket.send(request(house, "long", max_tokens=400))
        await receive(socket)
        await socket.send(json.dumps({"type": "cancel", "id": "long"}))
        frames = await until_end(socket, "long")
        assert frames["long"][-1] == {"type": "done", "id": "long", "cancelled": True}
        await socket.send(json.dumps({"type": "cancel", "id": "long"}))  # too late: nothing happens
        await socket.send(json.dumps({"type": "ping"}))
        assert await receive(socket) == {"type": "pong"}
        await socket.send(request(house, "long"))
        assert text_of((await until_end(socket, "long"))["long"])
    cancelled, completed = house.ledger(acme)
    assert (cancelled.outcome, completed.outcome) == ("cancelled", "completed")
    assert 1 <= cancelled.completion_tokens < 100


async def test_a_socket_that_breaks_off_settles_everything(gateway: Process, house: House, acme: Actor) -> None:
    async with program(gateway, acme) as socket:
        for number in range(3):
            await socket.send(request(house, str(number), max_tokens=400))
        for _ in range(9):
            await receive(socket)
        socket.transport.abort()
    wait_for(lambda: len(house.ledger(acme)) == 3 and not house.running(acme))
    assert {row.outcome for row in house.ledger(acme)} == {"cancelled"}


@pytest.mark.parametrize(
    ("frame", "param"),
    [
        ("{", None),
        ("[]", None),
        ({"type": "subscribe"}, "type"),
        ({"type": 5}, "type"),
        ({"type": DEEP}, "type"),
        ({"type": "ping", "id": DEEP}, "id"),
        ({"type": "request", "id": DEEP, "body": {}}, "id"),
        ({"type": "request", "id": "a", "body": {"response_format": DEEP}}, "response_format"),
        ({"type": "request", "id": "a", "body": {"tools": DEEP}}, "tools"),
        ({}, "type"),
        ({"type": "request", "body": {}}, "id"),
        ({"type": "request", "id": 5, "body": {}}, "id"),
        ({"type": "request", "id": "x" * 65, "body": {}}, "id"),
        ({"type": "request", "id": "a"}, "body"),
        ({"type": "request", "id": "a", "body": []}, None),
        ({"type": "request", "id": "a", "body": {}, "extra": 1}, "extra"),
        ({"type": "request", "id": "a", "body": {"foo": 1}}, "foo"),
        ({"type": "request", "id": "a", "body": {"model": "m", "messages": [], "stream": True}}, "messages"),
        ({"type": "ping", "id": "a"}, "id"),
    ],
)
async def test_wrong_frames_get_an_error_and_the_socket_lives(
    gateway: Process, house: House, acme: Actor, frame: Any, param: str | None
) -> None:
    async with program(gateway, acme) as socket:
        await socket.send(frame if isinstance(frame, str) else json.dumps(frame))
        answer = await receive(socket)
        assert answer["type"] == "error"
        assert answer["error"]["param"] == param
        asks = isinstance(frame, dict) and frame.get("type") == "request"
        assert answer["id"] == ("a" if asks and frame.get("id") == "a" else None)
        assert set(answer["error"]) == {"message", "type", "param", "code"}
        await socket.send(json.dumps({"type": "ping"}))
        assert (await receive(socket))["type"] == "pong"


async def test_an_id_in_use_and_too_many_requests(gateway: Process, house: House, acme: Actor) -> None:
    async with program(gateway, acme) as socket:
        for number in range(33):
            await socket.send(request(house, str(number), max_tokens=400))
        while (frame := await receive(socket))["type"] != "error":
            pass
        assert (frame["id"], frame["error"]["code"]) == ("32", "concurrency_limit_exceeded")
        await socket.send(request(house, "0"))
        while (frame := await receive(socket))["type"] != "error":
            pass
        # An error with the id would be the last frame of the request that goes on.
        assert (frame["id"], frame["error"]["param"]) == (None, "id")
        await socket.send(json.dumps({"type": "request", "id": "0", "body": {}, "extra": 1}))
        while (frame := await receive(socket))["type"] != "error":
            pass
        assert (frame["id"], frame["error"]["param"]) == (None, "extra")


async def test_refused_requests_do_not_cost_the_socket(gateway: Process, house: House, acme: Actor) -> None:
    async with program(gateway, acme) as socket:
        for number in range(40):
            await socket.send(request(house, str(number), model="nobody/nothing"))
            assert (await receive(socket))["error"]["code"] == "model_not_found"
            await socket.send(json.dumps({"type": "request", "id": "x", "body": {"n": 2}}))
            assert (await receive(socket))["type"] == "error"
        await socket.send(request(house, "last"))
        frames = (await until_end(socket, "last"))["last"]
        assert frames[-1]["type"] == "done"


@pytest.mark.parametrize(("frame", "code"), [(b"\x00", 1003), ("x" * 40_000_000, 1009)], ids=["binary", "large"])
async def test_frames_that_close_the_socket(gateway: Process, acme: Actor, frame: Any, code: int) -> None:
    async with program(gateway, acme) as socket:
        await socket.send(frame)
        with pytest.raises(ConnectionClosed):
            await asyncio.wait_for(socket.recv(), 10)
        assert socket.close_code == code


async def test_a_revoked_key_closes_the_socket(gateway: Process, house: House, acme: Actor) -> None:
    from django.utils import timezone

    async with program(gateway, acme) as socket:
        await socket.send(request(house, "running", max_tokens=400))
        await receive(socket)
        acme.key.revoked_at = timezone.now()
        acme.key.save()
        frames = await until_end(socket, "running")
        assert frames["running"][-1]["error"]["code"] == "invalid_api_key"
        with pytest.raises(ConnectionClosed):
            await asyncio.wait_for(socket.recv(), 5)
        assert socket.close_code == 4401


# Doors ----------------------------------------------------------------------------------------------------------------


async def refused(connecting: Any) -> tuple[int, str]:
    with pytest.raises(InvalidStatus) as refusal:
        async with connecting:
            pass
    response = refusal.value.response
    return response.status_code, json.loads(response.body)["error"]["code"]


async def test_doors(gateway: Process, house: House, acme: Actor) -> None:
    assert await refused(connect(address(gateway))) == (401, "invalid_api_key")
    wrong = {"Authorization": "Bearer lpx_live_a_b"}
    assert await refused(connect(address(gateway), additional_headers=wrong)) == (401, "invalid_api_key")
    elsewhere = connect(address(gateway) + "/x", additional_headers=acme.headers)
    assert await refused(elsewhere) == (404, "unknown_url")
    assert await refused(browser(gateway, "guess")) == (401, "invalid_api_key")


async def test_a_clients_bad_key_is_no_error_in_the_operators_log(house: House, acme: Actor, tmp_path: Path) -> None:
    with started_gateway(tmp_path) as own:
        for wrong in ({}, {"Authorization": "Bearer lpx_live_a_b"}):
            assert await refused(connect(address(own), additional_headers=wrong)) == (401, "invalid_api_key")
        async with program(own, acme) as socket:  # by now the refused ones are over
            await socket.send(request(house, "a"))
            assert text_of((await until_end(socket, "a"))["a"]) == " 0 1 2 3 4"
        log = own.log.read_text()
    assert log.count('"WebSocket /v1/ws" 401') == 2
    assert "ERROR" not in log


async def test_a_ticket_opens_one_socket_from_the_own_page(gateway: Process, house: House, acme: Actor) -> None:
    ticket = await ticket_of(gateway, acme)
    assert await refused(browser(gateway, ticket, "https://evil.example")) == (403, "origin_not_allowed")
    assert await refused(browser(gateway, ticket, None)) == (403, "origin_not_allowed")
    async with browser(gateway, ticket) as socket:
        assert socket.subprotocol == PROTOCOL
        await socket.send(request(house, "a"))
        assert text_of((await until_end(socket, "a"))["a"]) == " 0 1 2 3 4"
    assert await refused(browser(gateway, ticket)) == (401, "invalid_api_key")


async def test_tickets_run_out_and_are_not_stored(gateway: Process, house: House, acme: Actor) -> None:
    from datetime import timedelta

    from django.utils import timezone

    from gateway.models import WsTicket

    ticket = await ticket_of(gateway, acme)
    (row,) = WsTicket.objects.all()
    assert ticket.encode() not in bytes(row.digest)
    WsTicket.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    assert await refused(browser(gateway, ticket)) == (401, "invalid_api_key")


async def test_a_ticket_is_its_tenants(gateway: Process, house: House, acme: Actor, stranger: Actor) -> None:
    name = house.adapter(acme, "pirate")
    async with browser(gateway, await ticket_of(gateway, stranger)) as socket:
        await socket.send(request(house, "a", model=name))
        assert (await until_end(socket, "a"))["a"][-1]["error"]["code"] == "model_not_found"
