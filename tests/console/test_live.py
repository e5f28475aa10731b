"""The overview's sockets: who may look, what they see, and what ends it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import socket as sockets
import threading
from collections.abc import Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import websockets
from django.conf import settings
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from console.live import (
    ENDED,
    KEPT_FOR_OPERATORS,
    MOST_OF_ONE_PERSON,
    MOST_OF_ONE_TENANT,
    MOST_SOCKETS,
    TOO_MANY,
    TRY_AGAIN,
    UNASKED,
    Audience,
    LiveConsumer,
)
from console.lookers import Look
from console.sampler import Sampler
from tenants.models import Member
from tests.console.between import Between
from tests.console.people import member, operator, session_of
from tests.gateway.api import ledger
from tests.gateway.house import ROUND_SECONDS, Actor, House, Process, started_gateway

pytestmark = pytest.mark.django_db(transaction=True)


def look(gateway: Process, slug: str | None, session: str | None, *, origin: str | None = "own") -> Any:
    path = "/console/live" if slug is None else f"/console/t/{slug}/live"
    headers = {} if session is None else {"Cookie": f"{settings.SESSION_COOKIE_NAME}={session}"}
    own = gateway.url if origin == "own" else origin
    return connect(
        gateway.url.replace("http", "ws") + path,
        additional_headers=headers,
        origin=None if own is None else websockets.Origin(own),
    )


async def refused(attempt: Any) -> int:
    with pytest.raises(InvalidStatus) as caught:
        async with attempt:
            pass
    return caught.value.response.status_code


async def shown(socket: Any) -> str:
    return str(json.loads(await asyncio.wait_for(socket.recv(), 10))["html"])


async def close_code(socket: Any, seconds: float = 10) -> int:
    async with asyncio.timeout(seconds):
        with contextlib.suppress(ConnectionClosed):
            while True:
                await socket.recv()
    return int(socket.close_code)


def busy(actor: Actor, tokens: int) -> None:
    """A request that ended just now, and one that runs."""
    now = timezone.now()
    ledger.ended(actor.key, now, after=timedelta(0), completion_tokens=tokens)
    ledger.request(actor.key, now)


async def test_a_tenant_sees_its_own_figures_and_an_operator_all(
    gateway: Process, house: House, acme: Actor, stranger: Actor
) -> None:
    busy(acme, 1111)
    busy(stranger, 4000)
    async with look(gateway, "acme", session_of(member(acme.tenant, Member.Role.VIEWER))) as socket:
        html = await shown(socket)
        assert "1\u202f111" in html
        assert "stub" not in html
        assert "KV" not in html
        assert house.base.name in html
    async with look(gateway, None, session_of(operator())) as socket:
        html = await shown(socket)
        assert "5\u202f111" in html
        assert "stub" in html
        assert "KV cache of stub" in html
        busy(acme, 1)
        assert "5\u202f112" in await shown(socket)


async def test_a_stranger_may_not_look(gateway: Process, house: House, acme: Actor, stranger: Actor) -> None:
    theirs = session_of(member(stranger.tenant))
    assert await refused(look(gateway, "acme", theirs)) == 403
    assert await refused(look(gateway, "nobody", theirs)) == 403
    assert await refused(look(gateway, None, theirs)) == 403
    for nobody in (None, "", "x" * 32):
        assert await refused(look(gateway, "acme", nobody)) == 403
        assert await refused(look(gateway, None, nobody)) == 403


async def test_another_sites_script_may_not_look(gateway: Process, house: House, acme: Actor) -> None:
    own = session_of(member(acme.tenant))
    for origin in ("https://evil.example", None, "null", gateway.url.replace("127.0.0.1", "127.0.0.1.evil.example")):
        assert await refused(look(gateway, "acme", own, origin=origin)) == 403
    async with look(gateway, "acme", own) as socket:
        assert await shown(socket)


def _sign_out(user: User, session: str, acme: Actor) -> None:
    Session.objects.filter(pk=session).delete()


def _new_password(user: User, session: str, acme: Actor) -> None:
    user.set_password("something else entirely")
    user.save()


def _remove(user: User, session: str, acme: Actor) -> None:
    Member.objects.filter(tenant=acme.tenant, user=user).delete()


def _suspend(user: User, session: str, acme: Actor) -> None:
    acme.tenant.state = "suspended"
    acme.tenant.save()


def _switch_off(user: User, session: str, acme: Actor) -> None:
    user.is_active = False
    user.save()


@pytest.mark.parametrize("end", [_sign_out, _new_password, _remove, _suspend, _switch_off])
async def test_what_ends_a_session_ends_the_look(gateway: Process, house: House, acme: Actor, end: Any) -> None:
    user = member(acme.tenant)
    session = session_of(user)
    async with look(gateway, "acme", session) as socket:
        await shown(socket)
        end(user, session, acme)
        assert await close_code(socket, seconds=6) == ENDED


async def test_an_operator_who_is_none_any_more_sees_no_more(gateway: Process, house: House, acme: Actor) -> None:
    user = operator()
    session = session_of(user)
    async with look(gateway, None, session) as one, look(gateway, "acme", session) as other:
        await shown(one)
        await shown(other)
        user.is_staff = False
        user.save()
        assert await close_code(one, seconds=6) == ENDED
        assert await close_code(other, seconds=6) == ENDED


async def test_one_person_has_only_so_many_and_nothing_is_taken(gateway: Process, house: House, acme: Actor) -> None:
    session = session_of(member(acme.tenant))
    sockets = [await look(gateway, "acme", session) for _ in range(MOST_OF_ONE_PERSON)]
    try:
        async with look(gateway, "acme", session) as another:
            assert await close_code(another) == TOO_MANY
            assert "close one of the others" in str(another.close_reason)
        async with look(gateway, "acme", session_of(member(acme.tenant))) as somebody_else:
            assert await shown(somebody_else)
        await sockets[0].send("hello")
        assert await close_code(sockets[0]) == UNASKED
        async with look(gateway, "acme", session) as instead:
            assert await shown(instead)
    finally:
        for socket in sockets:
            await socket.close()


async def test_one_account_leaves_room_for_others(gateway: Process, house: House, acme: Actor, stranger: Actor) -> None:
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(MOST_OF_ONE_TENANT // MOST_OF_ONE_PERSON):
            session = session_of(member(acme.tenant, Member.Role.VIEWER))
            for _ in range(MOST_OF_ONE_PERSON):
                await stack.enter_async_context(look(gateway, "acme", session))
        async with look(gateway, "acme", session_of(member(acme.tenant))) as another:
            assert await close_code(another) == TOO_MANY
            assert "pages of this account" in str(another.close_reason)
        async with look(gateway, "stranger", session_of(member(stranger.tenant))) as theirs:
            assert await shown(theirs)
        async with look(gateway, None, session_of(operator())) as root:
            assert await shown(root)


async def test_places_are_kept_for_operators() -> None:
    audience, people, tenants = Audience(), itertools.count(), itertools.cycle(f"t{n}" for n in range(8))

    def more(slug: str | None) -> str | None:
        return audience.enter(LiveConsumer(), Look("none", slug, None), next(people))

    assert [more(next(tenants)) for _ in range(MOST_SOCKETS - KEPT_FOR_OPERATORS)] == [None] * 224
    assert "pages are live here" in str(more("another"))
    assert [more(None) for _ in range(KEPT_FOR_OPERATORS)] == [None] * 32
    assert "pages are live here" in str(more(None))
    assert audience._task is not None
    audience._task.cancel()


class Counting(ThreadingHTTPServer):
    """A worker that counts who comes: the router keeps its one connection, each round of lookers opens another."""

    opened = 0

    def process_request(self, request: Any, client_address: Any) -> None:
        self.opened += 1
        super().process_request(request, client_address)


class Healthy(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    fingerprint = ""

    def do_GET(self) -> None:
        health = json.dumps({"status": "ok", "fingerprint": self.fingerprint})
        body = ("vllm:num_requests_running 7\n" if self.path == "/metrics" else health).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def counting(bare_house: House) -> Iterator[Counting]:
    handler = type("Handler", (Healthy,), {"fingerprint": bare_house.fingerprint})
    with Counting(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        bare_house.worker(f"http://127.0.0.1:{server.server_port}", "counting")
        yield server
        server.shutdown()


async def test_nobody_asks_the_workers_once_nobody_looks(gateway: Process, counting: Counting) -> None:
    async with look(gateway, None, session_of(operator())) as socket:
        while "KV cache of counting" not in await shown(socket):
            pass
        before = counting.opened
        for _ in range(2):
            await shown(socket)
        assert counting.opened > before, "each round asks"
    await asyncio.sleep(ROUND_SECONDS + 2.0)  # the round that is under way
    before = counting.opened
    await asyncio.sleep(ROUND_SECONDS + 0.5)
    assert counting.opened == before


async def test_rounds_end_with_the_last_look_and_begin_again(
    bare_house: House, stub: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare_house.worker(stub.url, "stub")
    audience = Audience()
    monkeypatch.setattr("console.live.AUDIENCE", audience)
    monkeypatch.setattr("console.live.EVERY_SECONDS", ROUND_SECONDS)
    cookie = f"{settings.SESSION_COOKIE_NAME}={session_of(operator())}".encode()
    scope = {"type": "websocket", "headers": [(b"cookie", cookie)], "url_route": {"kwargs": {}}}
    rounds = []
    for _ in range(2):
        events, sent = asyncio.Queue[Any](), asyncio.Queue[Any]()
        events.put_nowait({"type": "websocket.connect"})
        line = asyncio.create_task(LiveConsumer.as_asgi()(scope, events.get, sent.put))
        async with asyncio.timeout(10):
            assert (await sent.get())["type"] == "websocket.accept"
            assert "stub" in (await sent.get())["text"]
            assert audience._task is not None
            rounds.append(audience._task)
            events.put_nowait({"type": "websocket.disconnect", "code": 1000})
            await line
            await rounds[-1]
    assert rounds[0] is not rounds[1]


def test_a_round_asks_as_much_for_many_as_for_one(house: House, acme: Actor, stranger: Actor) -> None:
    """Sockets of members of many tenants and of operators, who look at the platform and at tenants."""
    sampler = Sampler()

    def looks(count: int) -> list[Look]:
        found = []
        for number in range(count):
            tenant = house.actor(f"many-{count}-{number}").tenant
            busy(Actor(tenant, tenant.api_keys.get(), ""), number)
            root = session_of(operator(f"root-{count}-{number}"))
            found.append(Look(session_of(member(tenant)), tenant.slug, None))
            found += [Look(root, None, None), Look(root, tenant.slug, None)]
        return found

    def queries(asked: list[Look]) -> int:
        with CaptureQueriesContext(connection) as seen:
            shown, operators = sampler._round(asked)
        assert operators
        assert all(shown.values())
        return len(seen)

    one, many = looks(1), looks(12)
    assert queries(many) == queries(one)
    shown, _ = sampler._round([*many, Look(one[0].session, many[0].slug or "", None), Look("none", None, None)])
    assert [look for look, html in shown.items() if html is None] == [
        Look(one[0].session, many[0].slug, None),
        Look("none", None, None),
    ]


async def test_without_the_database_a_look_is_told_to_try_again(house: House, acme: Actor, tmp_path: Path) -> None:
    between, session = Between(), session_of(member(acme.tenant))
    with contextlib.closing(between), started_gateway(tmp_path, DATABASE_URL=between.url) as process:
        async with look(process, "acme", session) as socket:
            await shown(socket)
            between.cut()
            assert await close_code(socket) == TRY_AGAIN
        async with look(process, "acme", session) as socket:
            assert await close_code(socket) == TRY_AGAIN
        between.open = True
        async with look(process, "acme", session) as socket:
            assert house.base.name in await shown(socket)


async def test_a_worker_that_hangs_holds_nobody_up(gateway: Process, house: House, acme: Actor) -> None:
    with sockets.create_server(("127.0.0.1", 0)) as hang:
        house.worker(f"http://127.0.0.1:{hang.getsockname()[1]}", "hangs")
        async with look(gateway, None, session_of(operator())) as socket:
            async with asyncio.timeout(10):  # a sampler that was awake already asks a new worker in its next round
                while "did not answer" not in (html := await shown(socket)):
                    pass
            assert "KV cache of stub" in html
            async with asyncio.timeout(4.5):
                await shown(socket)


async def test_a_gateway_stops_at_once_whoever_looks(house: House, acme: Actor, tmp_path: Path) -> None:
    with started_gateway(tmp_path) as process:
        async with look(process, "acme", session_of(member(acme.tenant))) as socket:
            await shown(socket)
            process.process.terminate()
            assert await close_code(socket, seconds=8) in {1001, 1012}
        await asyncio.to_thread(process.process.wait, 10)
        assert "Traceback" not in process.log.read_text()
