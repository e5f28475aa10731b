"""Whoever signs out, is removed or loses the right goes on in the playground no more: streams, sockets, tickets."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from websockets.exceptions import ConnectionClosed, InvalidStatus

from gateway.models import WsTicket
from tenants import accounts, membership, operators
from tenants.actors import Actor as Doer
from tenants.callers import Role
from tenants.models import Member
from tests.console.people import member, operator, session_of
from tests.gateway.house import Actor, House, Process, started_gateway, wait_for
from tests.gateway.test_sockets import browser, receive, request, until_end

DOER = Doer("command", "tests")
TOKEN = "x" * 32


@dataclass(frozen=True)
class Visitor:
    """Somebody signed in, in one browser."""

    gateway: Process
    user: User
    session: str
    path: str = "/api/playground-tickets"

    async def ticket(self) -> str:
        cookies = {settings.SESSION_COOKIE_NAME: self.session, settings.CSRF_COOKIE_NAME: TOKEN}
        async with (
            aiohttp.ClientSession(cookies=cookies) as session,
            session.post(self.gateway.url + self.path, json={}, headers={"X-CSRFToken": TOKEN}) as answer,
        ):
            assert answer.status == 201, await answer.text()
            return str((await answer.json())["ticket"])


def a_member(gateway: Process, acme: Actor) -> Visitor:
    user = member(acme.tenant, Role.DEVELOPER, "ada")
    return Visitor(gateway, user, session_of(user))


def an_operator(gateway: Process, acme: Actor) -> Visitor:
    operator("other")
    user = operator("grace")
    return Visitor(gateway, user, session_of(user), f"/api/operator/tenants/{acme.tenant.slug}/playground-tickets")


def _sign_out(visitor: Visitor) -> None:
    Session.objects.get(pk=visitor.session).delete()


def _new_password(visitor: Visitor) -> None:
    visitor.user.set_password("correct horse battery staple")
    visitor.user.save()


def _membership(visitor: Visitor) -> Member:
    found: Member = Member.objects.unscoped().get(user=visitor.user)
    return found


def _demote(visitor: Visitor) -> None:
    membership.change_role(DOER, _membership(visitor), Role.VIEWER)


def _remove(visitor: Visitor) -> None:
    membership.remove(DOER, _membership(visitor))


def _switch_off(visitor: Visitor) -> None:
    accounts.switch_off(DOER, visitor.user)


def _remove_operator(visitor: Visitor) -> None:
    operators.remove_operator(DOER, visitor.user.username)


def _off_in_the_database(visitor: Visitor) -> None:
    User.objects.filter(pk=visitor.user.pk).update(is_active=False)


def _no_operator_in_the_database(visitor: Visitor) -> None:
    User.objects.filter(pk=visitor.user.pk).update(is_staff=False)


REVOKED, SIGNED_OUT = {"invalid_api_key"}, {"signed_out"}


async def closed(socket: Any) -> int | None:
    with contextlib.suppress(ConnectionClosed):
        while True:
            await socket.recv()
    code: int | None = socket.close_code
    return code


async def refused(gateway: Process, ticket: str) -> int:
    with pytest.raises(InvalidStatus) as caught:
        async with browser(gateway, ticket):
            pass
    return caught.value.response.status_code


@pytest.mark.slow
@pytest.mark.parametrize(
    ("who", "end", "codes"),
    [
        (a_member, _sign_out, SIGNED_OUT),
        (a_member, _new_password, SIGNED_OUT),
        (a_member, _demote, SIGNED_OUT),
        (a_member, _off_in_the_database, SIGNED_OUT),
        (a_member, _remove, REVOKED),
        (a_member, _switch_off, REVOKED),
        (an_operator, _sign_out, SIGNED_OUT),
        (an_operator, _new_password, SIGNED_OUT),
        (an_operator, _no_operator_in_the_database, SIGNED_OUT),
        (an_operator, _remove_operator, REVOKED),
        (an_operator, _switch_off, REVOKED),
    ],
)
async def test_what_ends_the_right_ends_streams_sockets_and_tickets(
    gateway: Process,
    house: House,
    acme: Actor,
    who: Callable[[Process, Actor], Visitor],
    end: Callable[[Visitor], None],
    codes: set[str],
) -> None:
    member(acme.tenant)  # an owner stays, whoever goes
    visitor = who(gateway, acme)
    held = await visitor.ticket()
    async with browser(gateway, await visitor.ticket()) as busy, browser(gateway, await visitor.ticket()) as idle:
        await busy.send(request(house, "long", max_tokens=400))
        assert (await receive(busy))["type"] == "chunk"
        began = time.monotonic()
        end(visitor)
        async with asyncio.timeout(5):
            last = (await until_end(busy, "long"))["long"][-1]
            # What revokes the key may reach a run by its lease before the watch looks.
            assert (last["type"], last["error"]["code"]) in {("error", code) for code in codes}
            assert [await closed(busy), await closed(idle)] == [4401, 4401]
        assert time.monotonic() - began < 5
    assert await refused(gateway, held) == 401
    assert not WsTicket.objects.exists()
    assert house.one_row(acme).completion_tokens < 390


@pytest.mark.slow
async def test_another_session_and_another_person_go_on(gateway: Process, house: House, acme: Actor) -> None:
    ada, bob = a_member(gateway, acme), member(acme.tenant, Role.DEVELOPER, "bob")
    others = (Visitor(gateway, ada.user, session_of(ada.user)), Visitor(gateway, bob, session_of(bob)))
    async with browser(gateway, await ada.ticket()) as ended:
        sockets = [browser(gateway, await one.ticket()) for one in others]
        async with sockets[0] as one, sockets[1] as other:
            _sign_out(ada)
            async with asyncio.timeout(5):
                assert await closed(ended) == 4401
            await asyncio.sleep(1.5)  # another round of the watch
            for socket in (one, other):
                await socket.send(request(house, "still here"))
                assert (await until_end(socket, "still here"))["still here"][-1]["type"] == "done"


@pytest.mark.slow
async def test_it_reaches_a_session_that_another_process_holds(
    gateway: Process, house: House, acme: Actor, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The request came through a process that only passed it on, and nobody is connected any more."""
    visitor = a_member(gateway, acme)
    async with browser(gateway, await visitor.ticket()) as first:
        await first.send(json.dumps({"type": "session"}))
        session = (await receive(first))["session"]
    with started_gateway(tmp_path_factory.mktemp("second")) as second:
        async with browser(second, await visitor.ticket()) as passed_on:
            await passed_on.send(json.dumps({"type": "resume", "session": session, "seq": 0}))
            assert (await receive(passed_on))["resumed"]
            await passed_on.send(request(house, "long", max_tokens=400))
            assert (await receive(passed_on))["type"] == "chunk"
            passed_on.transport.abort()
        _sign_out(visitor)
        await asyncio.to_thread(wait_for, lambda: house.running(acme) == 0, 5)
    assert house.one_row(acme).completion_tokens < 300


async def test_a_playgrounds_ticket_without_a_session_opens_nothing(
    gateway: Process, house: House, acme: Actor
) -> None:
    """As a gateway from before would write it."""
    visitor = a_member(gateway, acme)
    ticket = await visitor.ticket()
    WsTicket.objects.update(session=None, password=None)
    assert await refused(gateway, ticket) == 401
