"""Django's requests take turns: one client's burst leaves places, threads and connections to the others."""

from __future__ import annotations

import asyncio
import contextlib

import aiohttp
import pytest
from django.db import connection
from django.http import HttpResponse
from django.http.response import HttpResponseBase
from django.test import RequestFactory

from gateway.errors import ApiError
from gateway.turns import ALL, OF_ADDRESS, OF_ONE, PatientHandler, Share, Turns, _client, to_its_end
from tenants.callers import Role
from tests.console.people import member, session_of
from tests.gateway.house import Actor, House, Process, wait_for


class Crowd:
    """Requests that hold their places until they are told to go."""

    def __init__(self) -> None:
        self.turns = Turns(ALL, OF_ONE, OF_ADDRESS)
        self.go = asyncio.Event()
        self.inside: list[str] = []
        self.tasks: list[asyncio.Task[str]] = []

    async def _ask(self, client: str, address: str) -> str:
        try:
            async with self.turns.taken(client, address):
                self.inside.append(client)
                await self.go.wait()
                return "answered"
        except ApiError as error:
            return str(error.status)

    async def ask(self, client: str, times: int, address: str | None = None) -> None:
        """:param address: of the client; ``None``: of its own."""
        where = client if address is None else address
        self.tasks += [asyncio.create_task(self._ask(client, where)) for _ in range(times)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    async def answers(self) -> list[str]:
        self.go.set()
        return [await task for task in self.tasks]


async def test_one_client_takes_few_places_and_the_next_is_let_in_at_once() -> None:
    crowd = Crowd()
    await crowd.ask("loud", 300)
    assert crowd.inside == ["loud"] * OF_ONE.places
    await crowd.ask("quiet", 1)
    assert crowd.inside[-1] == "quiet"
    answers = await crowd.answers()
    assert answers.count("answered") == OF_ONE.asking + 1
    assert answers.count("503") == 300 - OF_ONE.asking


async def test_many_parties_take_no_more_than_there_is() -> None:
    crowd = Crowd()
    for number in range(100):
        await crowd.ask(f"c{number}", 5)
    assert len(crowd.inside) == ALL.places
    answers = await crowd.answers()
    assert answers.count("answered") == ALL.asking
    assert not crowd.turns._parties, "nobody is remembered who asks for nothing"


async def test_one_address_leaves_places_whoever_it_says_to_be() -> None:
    crowd = Crowd()
    for number in range(300):
        await crowd.ask(f"made up {number}", 1, "here")
    assert len(crowd.inside) == OF_ADDRESS.places
    await crowd.ask("quiet", 1, "there")
    assert crowd.inside[-1] == "quiet"
    answers = await crowd.answers()
    assert answers.count("answered") == OF_ADDRESS.asking + 1
    assert answers.count("503") == 300 - OF_ADDRESS.asking
    assert not crowd.turns._parties


@pytest.mark.parametrize(
    ("sent", "client"),
    [
        ({"HTTP_AUTHORIZATION": "Bearer a", "HTTP_COOKIE": "sessionid=made-up"}, "key Bearer a"),
        ({"HTTP_COOKIE": "sessionid=b"}, "session b"),
        ({}, "nobody at 127.0.0.1"),
    ],
)
def test_a_key_counts_whatever_cookie_comes_along(sent: dict[str, str], client: str) -> None:
    assert _client(RequestFactory().get("/v1/models", **sent), "127.0.0.1") == client


async def test_health_is_answered_though_every_place_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """A balancer would take the process for a dead one, and its streams from it."""
    handler = PatientHandler()
    monkeypatch.setattr(handler, "_answer", lambda request: asyncio.sleep(0, HttpResponse(request.path)))
    monkeypatch.setattr("gateway.turns.ALL", Share(1, 0))
    answers = [await handler.get_response_async(RequestFactory().get(path)) for path in ("/health", "/v1/models")]
    assert [answer.status_code for answer in answers] == [200, 503]


async def test_who_leaves_while_waiting_takes_no_place() -> None:
    crowd = Crowd()
    await crowd.ask("one", OF_ONE.places + 3)
    for task in crowd.tasks[OF_ONE.places :]:
        task.cancel()
    await asyncio.sleep(0)
    await crowd.ask("one", 1)
    crowd.go.set()
    assert await crowd.tasks[-1] == "answered"
    assert len(crowd.inside) == OF_ONE.places + 1


async def test_the_place_of_a_client_that_left_is_free_when_its_work_is_done() -> None:
    """Its thread cannot be stopped."""
    turns, finish, working = Turns(ALL, OF_ONE, OF_ADDRESS), asyncio.Event(), 0

    async def work() -> HttpResponse:
        nonlocal working
        working += 1
        await finish.wait()
        working -= 1
        return HttpResponse()

    async def ask() -> HttpResponseBase:
        async with turns.taken("one", "here"):
            return await to_its_end(work())

    tasks = [asyncio.create_task(ask()) for _ in range(3 * OF_ONE.places)]
    await asyncio.sleep(0.01)
    for task in tasks[: 2 * OF_ONE.places]:
        task.cancel()
    await asyncio.sleep(0.01)
    assert working == OF_ONE.places, "those that left work on, and nobody has come in"
    finish.set()
    done = await asyncio.gather(*tasks, return_exceptions=True)
    cancelled = [isinstance(one, asyncio.CancelledError) for one in done]
    assert cancelled == [True] * 2 * OF_ONE.places + [False] * OF_ONE.places


def backends() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'")
        return int(cursor.fetchone()[0])


@pytest.mark.slow
async def test_a_burst_of_one_developer_leaves_connections_and_answers_to_others(
    gateway: Process, house: House, acme: Actor, stranger: Actor
) -> None:
    mine, theirs = session_of(member(acme.tenant, Role.DEVELOPER)), session_of(member(stranger.tenant))
    before = backends()
    most = 0
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as client:

        async def ask(session: str, slug: str) -> int:
            cookies = {"Cookie": f"sessionid={session}"}
            with contextlib.suppress(aiohttp.ClientError):
                async with client.get(f"{gateway.url}/console/t/{slug}/requests", headers=cookies) as answer:
                    await answer.read()
                    return answer.status
            return 0

        burst = [asyncio.create_task(ask(mine, "acme")) for _ in range(300)]
        await asyncio.sleep(0.05)
        others = []
        while not all(task.done() for task in burst):
            others.append(await ask(theirs, "stranger"))
            most = max(most, await asyncio.to_thread(backends))
        statuses = [task.result() for task in burst]
    assert set(others) == {200}
    assert set(statuses) == {200, 503}
    assert most - before <= ALL.places + 4
    wait_for(lambda: backends() <= before + 4, 10)
