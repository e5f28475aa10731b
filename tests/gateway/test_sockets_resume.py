"""Sessions: a client that lost its connection gets every later frame once, and is billed as if nothing had happened."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.gateway.house import Actor, House, Process, started_gateway, wait_for
from tests.gateway.resuming import ResumingClient
from tests.gateway.test_sockets import address, program, receive, request, text_of, until_end


@asynccontextmanager
async def resuming(gateway: Process, actor: Actor, every: int = 7) -> AsyncIterator[ResumingClient]:
    client = ResumingClient(gateway, actor, every)
    await client.connect()
    yield client
    await client.drop()


async def ask(client: ResumingClient, house: House, identity: str, **fields: Any) -> None:
    assert client.socket is not None
    await client.socket.send(request(house, identity, **fields))


def counted(tokens: int) -> str:
    return "".join(f" {number}" for number in range(tokens))


async def test_an_undisturbed_session(gateway: Process, house: House, acme: Actor) -> None:
    async with resuming(gateway, acme) as client:
        await ask(client, house, "a", stream_options={"include_usage": True})
        await client.until_ended("a")
        assert text_of(client.frames["a"]) == counted(5)
        await ask(client, house, "b", model="nobody/nothing")
        await client.until_ended("b")
        assert client.frames["b"][0]["error"]["code"] == "model_not_found"


@pytest.mark.parametrize("seed", range(4))
async def test_disconnects_at_random_points_lose_and_repeat_nothing(
    gateway: Process, house: House, acme: Actor, seed: int
) -> None:
    chance = random.Random(seed)
    lengths = {f"r{number}": chance.randrange(1, 120) for number in range(6)}
    async with resuming(gateway, acme, every=chance.choice([1, 5, 50, 0])) as client:
        for identity, length in lengths.items():
            await ask(client, house, identity, max_tokens=length, stream_options={"include_usage": True})
        for _ in range(8):
            await asyncio.sleep(chance.random() * 0.4)
            await client.drop(silently=chance.random() < 0.4)
            await asyncio.sleep(chance.choice([0.0, chance.random() * 0.5]))
            await client.connect()
        await client.until_ended(*lengths)
    for identity, length in lengths.items():
        frames = client.frames[identity]
        assert text_of(frames) == counted(length)
        assert frames[-1] == {"type": "done", "id": identity}
        assert frames[-2]["data"]["usage"]["completion_tokens"] == length
    wait_for(lambda: len(house.ledger(acme)) == len(lengths))
    assert sorted(row.completion_tokens for row in house.ledger(acme)) == sorted(lengths.values())
    assert {row.outcome for row in house.ledger(acme)} == {"completed"}


async def test_what_ended_meanwhile_is_delivered(gateway: Process, house: House, acme: Actor) -> None:
    async with resuming(gateway, acme) as client:
        await ask(client, house, "a", max_tokens=20)
        await asyncio.sleep(0.1)
        await client.drop()
        wait_for(lambda: house.ledger(acme))
        answer = await client.connect()
        assert answer["requests"] == []
        await client.until_ended("a")
        assert text_of(client.frames["a"]) == counted(20)
        await ask(client, house, "a", max_tokens=2)  # the id is free again, the session goes on
        await asyncio.sleep(0.3)
        assert client.frames["a"][-1]["type"] == "done"


async def test_a_request_that_never_arrived_is_seen_in_the_answer(gateway: Process, house: House, acme: Actor) -> None:
    async with resuming(gateway, acme) as client:
        await ask(client, house, "arrived", max_tokens=200)
        await asyncio.sleep(0.2)
        await client.drop()
        answer = await client.connect()
        assert (answer["requests"], answer["session"]) == (["arrived"], client.session)
        await client.say(type="cancel", id="arrived")
        await client.until_ended("arrived")
        assert client.frames["arrived"][-1] == {"type": "done", "id": "arrived", "cancelled": True}


async def test_a_second_connection_takes_the_session_over(gateway: Process, house: House, acme: Actor) -> None:
    async with resuming(gateway, acme) as client:
        first = client.socket
        await ask(client, house, "a", max_tokens=60)
        await client.until_seq(3)
        await client.connect()
        assert first is not None
        await asyncio.wait_for(first.wait_closed(), 5)
        assert first.close_code == 4409
        await client.until_ended("a")


async def test_only_the_same_key_may_resume(gateway: Process, house: House, acme: Actor, stranger: Actor) -> None:
    from tenants.models import ApiKey

    _, secret = ApiKey.issue(acme.tenant)
    colleague = Actor(acme.tenant, acme.key, secret.reveal())
    async with resuming(gateway, acme) as client:
        await ask(client, house, "a", max_tokens=50)
        await asyncio.sleep(0.1)
        answers = []
        for actor, session in ((stranger, client.session), (colleague, client.session), (acme, client.session + "x")):
            async with program(gateway, actor) as socket:
                await socket.send(json.dumps({"type": "resume", "session": session, "seq": 0}))
                answers.append(await receive(socket))
        assert {json.dumps(answer) for answer in answers} == {json.dumps(answers[0])}
        assert answers[0]["error"]["code"] == "session_not_found"
        await client.until_ended("a")
        assert text_of(client.frames["a"]) == counted(50)


@pytest.mark.parametrize(
    ("frame", "param"),
    [
        ({"type": "resume", "seq": 0}, "session"),
        ({"type": "resume", "session": 5, "seq": 0}, "session"),
        ({"type": "resume", "session": "x", "seq": -1}, "seq"),
        ({"type": "resume", "session": "x", "seq": True}, "seq"),
        ({"type": "resume", "session": "x"}, "seq"),
        ({"type": "resume", "session": "x" * 129, "seq": 0}, "session"),
        ({"type": "resume", "session": "../../etc.x", "seq": 0}, "session"),
        ({"type": "ack", "seq": 0}, "type"),
        ({"type": "ack"}, "seq"),
        ({"type": "session", "id": "x"}, "id"),
    ],
)
async def test_wrong_frames(gateway: Process, acme: Actor, frame: Any, param: str) -> None:
    async with program(gateway, acme) as socket:
        await socket.send(json.dumps(frame))
        assert (await receive(socket))["error"]["param"] == param


async def test_frames_that_a_session_refuses(gateway: Process, house: House, acme: Actor) -> None:
    async with program(gateway, acme) as socket:
        await socket.send(request(house, "a"))
        await until_end(socket, "a")
        await socket.send(json.dumps({"type": "session"}))
        assert "before the first request" in (await receive(socket))["error"]["message"]
    async with resuming(gateway, acme) as client:
        await client.drop()
        client.seq = 5
        with pytest.raises(AssertionError, match="was not sent"):
            await client.connect()
        client.seq = 0
        await client.connect()
        await ask(client, house, "a")
        await client.until_ended("a")
        await client.say(type="ack", seq=client.seq)
        await asyncio.sleep(0.1)
        await client.drop()
        client.seq -= 1
        with pytest.raises(AssertionError, match="not kept"):
            await client.connect()
        client.seq += 1
        await client.connect()


# Bounds, in a gateway that has small ones -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def strict(django_db_setup: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    bounds = {"SECONDS": "2", "BYTES": "65536", "TENANT_BYTES": "131072"}
    settings = {f"LORAPLEX_RESUME_{name}": value for name, value in bounds.items()}
    pings = ("--ws-ping-interval", "1", "--ws-ping-timeout", "1")
    with started_gateway(tmp_path_factory.mktemp("strict"), *pings, **settings) as process:
        yield process


async def test_nobody_comes_back(strict: Process, house: House, acme: Actor) -> None:
    async with resuming(strict, acme) as client:
        await ask(client, house, "a", max_tokens=400)
        await asyncio.sleep(0.3)
        await client.drop()
        row = house.one_row(acme, 5)
        assert (row.outcome, row.completion_tokens < 200) == ("cancelled", True)
        with pytest.raises(AssertionError, match="session_not_found"):
            await client.connect()


async def test_too_much_while_nobody_is_there_is_a_disconnect(strict: Process, house: House, acme: Actor) -> None:
    async with resuming(strict, acme) as client:
        for number in range(8):
            await ask(client, house, str(number), max_tokens=400)
        await asyncio.sleep(0.2)
        await client.drop()
        wait_for(lambda: len(house.ledger(acme)) == 8, 1.9)  # before the grace period is over
        assert {row.outcome for row in house.ledger(acme)} == {"cancelled"}


async def test_requests_wait_for_acknowledgements(strict: Process, house: House, acme: Actor) -> None:
    """Half the buffer; the rest comes once the client acknowledges what it has, and nothing is missing."""
    async with resuming(strict, acme, every=0) as client:
        for number in range(4):
            await ask(client, house, str(number), max_tokens=120)
        await asyncio.sleep(4)
        assert not client.ended
        held = client.seq
        await asyncio.sleep(0.3)
        assert client.seq == held
        for _ in range(20):
            await client.say(type="ack", seq=client.seq)
            await asyncio.sleep(0.1)
        await client.until_ended("0", "1", "2", "3")
        assert {text_of(frames) for frames in client.frames.values()} == {counted(120)}


async def test_a_tenants_sessions_share_its_bytes(strict: Process, house: House, acme: Actor, stranger: Actor) -> None:
    """Six sessions that acknowledge nothing want more than the tenant has: one that waits for its client ends first."""
    lost, other = ResumingClient(strict, acme, every=0), ResumingClient(strict, stranger, every=0)
    for client in (lost, other):
        await client.connect()
        await ask(client, house, "a", max_tokens=90)
    await lost.until_ended("a")
    await other.until_ended("a")
    crowd = [ResumingClient(strict, acme, every=0) for _ in range(6)]
    for client in crowd:
        await client.connect()
    await lost.drop()
    await other.drop()
    for client in crowd:
        await ask(client, house, "a", max_tokens=60, n=2)
    await asyncio.sleep(1.6)  # within the grace period
    await other.connect()
    with pytest.raises(AssertionError, match="session_not_found"):
        await lost.connect()
    for client in (*crowd, other):
        await client.drop()


async def test_a_client_that_answers_no_ping_is_cut_off(strict: Process, house: House, acme: Actor) -> None:
    """Its connection looks alive: nothing was closed, nothing fails. Without a session its requests end with it."""
    client = ResumingClient(strict, acme)
    await client.connect()
    await ask(client, house, "a", max_tokens=100)
    await client.until_seq(1)
    await client.drop(silently=True)
    async with program(strict, acme) as socket:
        await socket.send(request(house, "b", max_tokens=400))
        await receive(socket)
        socket.transport.pause_reading()
        await asyncio.sleep(2.8)  # 2 s until it is noticed
        (row,) = [row for row in house.ledger(acme) if row.outcome == "cancelled"]
        assert 40 < row.completion_tokens < 150
        socket.transport.abort()
    await client.connect()
    await client.until_ended("a")
    assert text_of(client.frames["a"]) == counted(100)
    await client.drop()


# Several processes ----------------------------------------------------------------------------------------------------


async def test_a_session_goes_on_through_another_process(
    gateway: Process, strict: Process, house: House, acme: Actor, stranger: Actor
) -> None:
    """A balancer may send the next connection anywhere: that process passes it on to the one that holds the session."""
    client = ResumingClient(gateway, acme)
    await client.connect()
    await ask(client, house, "a", max_tokens=100)
    for process in (strict, gateway, strict, strict):
        await asyncio.sleep(0.2)
        await client.drop(silently=process is gateway)
        client.address = address(process)
        await client.connect()
    await ask(client, house, "b", max_tokens=5)
    await client.until_ended("a", "b")
    assert text_of(client.frames["a"]) == counted(100)
    await client.drop()
    async with program(strict, stranger) as socket:
        await socket.send(json.dumps({"type": "resume", "session": client.session, "seq": client.seq}))
        assert (await receive(socket))["error"]["code"] == "session_not_found"
    await client.connect()
    from django.utils import timezone

    acme.key.revoked_at = timezone.now()
    acme.key.save()
    assert client.socket is not None
    await asyncio.wait_for(client.socket.wait_closed(), 5)
    assert client.socket.close_code == 4401
    wait_for(lambda: len(house.ledger(acme)) == 2)


async def test_a_process_that_is_gone_held_nothing_for_anybody(gateway: Process, acme: Actor) -> None:
    async with program(gateway, acme) as socket:
        await socket.send(json.dumps({"type": "resume", "session": "deadbeef.x", "seq": 0}))
        assert (await receive(socket))["error"]["code"] == "session_not_found"


@pytest.mark.slow
async def test_the_process_that_holds_a_session_is_killed(
    gateway: Process, house: House, acme: Actor, tmp_path: Any
) -> None:
    with started_gateway(tmp_path) as own:
        client = ResumingClient(own, acme)
        await client.connect()
        await ask(client, house, "a", max_tokens=300)
        await client.drop()
        client.address = address(gateway)
        await client.connect()
        own.process.kill()
        assert client.socket is not None
        await asyncio.wait_for(client.socket.wait_closed(), 5)
        assert client.socket.close_code == 1001
        await asyncio.to_thread(own.process.wait, 10)  # its door closes a moment after its connections
        with pytest.raises(AssertionError, match="session_not_found"):
            await client.connect()


@pytest.mark.slow
async def test_draining_delivers_what_there_is(house: House, acme: Actor, tmp_path: Any) -> None:
    with started_gateway(tmp_path) as own:
        async with resuming(own, acme) as client:
            await ask(client, house, "a", max_tokens=60)
            await client.until_seq(1)
            own.process.terminate()
            await client.until_ended("a")
            assert text_of(client.frames["a"]) == counted(60)
            assert client.socket is not None
            await asyncio.wait_for(client.socket.wait_closed(), 10)
            assert client.socket.close_code == 1001
