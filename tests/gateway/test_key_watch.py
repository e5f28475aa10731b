"""What narrows a key reaches every gateway process, running streams and idle sockets within five seconds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import Any

import aiohttp
import psycopg
import pytest
from django.conf import settings
from django.utils import timezone
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from tenants import key_ring
from tenants.callers import caller_of_command
from tenants.models import ApiKey, Denial, Tenant
from tests.gateway.house import Actor, House, Process, started_gateway, wait_for
from tests.gateway.test_sockets import program

CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def second_gateway(gateway: Process, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    with started_gateway(tmp_path_factory.mktemp("second")) as process:
        yield process


def body(house: House, **fields: Any) -> dict[str, Any]:
    return {"model": house.base.name, "messages": [{"role": "user", "content": "hi"}]} | fields


@asynccontextmanager
async def stream(gateway: Process, house: House, actor: Actor) -> AsyncIterator[aiohttp.ClientResponse]:
    """A stream of eight seconds that has begun."""
    async with (
        aiohttp.ClientSession() as session,
        session.post(
            gateway.url + CHAT, json=body(house, stream=True, max_tokens=400), headers=actor.headers
        ) as answer,
    ):
        await answer.content.readuntil(b" 3")
        yield answer


async def closed(socket: ClientConnection) -> int | None:
    with pytest.raises(ConnectionClosed):
        await socket.recv()
    return socket.close_code


async def until(ask: Callable[[], Awaitable[int]], wanted: int, seconds: float) -> None:
    async with asyncio.timeout(seconds):
        while await ask() != wanted:  # noqa: ASYNC110 - what is waited for happens in another process
            await asyncio.sleep(0.05)


def revoke(actor: Actor) -> None:
    key_ring.revoke(caller_of_command(actor.tenant), actor.key)


def expire(actor: Actor) -> None:
    key_ring.change(caller_of_command(actor.tenant), actor.key, expires_at=timezone.now() + timedelta(seconds=1))


def forbid_address(actor: Actor) -> None:
    key_ring.change(caller_of_command(actor.tenant), actor.key, networks=["203.0.113.0/24"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("narrow", "code"),
    [(revoke, "invalid_api_key"), (expire, "invalid_api_key"), (forbid_address, "address_not_allowed")],
)
async def test_a_key_that_ends_ends_what_it_holds_open_in_every_process(
    narrow: Callable[[Actor], None], code: str, gateway: Process, second_gateway: Process, house: House, acme: Actor
) -> None:
    async with AsyncExitStack() as open_ones:
        both = (gateway, second_gateway)
        answers = [await open_ones.enter_async_context(stream(one, house, acme)) for one in both]
        sockets = [await open_ones.enter_async_context(program(one, acme)) for one in both]
        began = time.monotonic()
        narrow(acme)
        async with asyncio.timeout(5):
            texts = [await answer.text() for answer in answers]
            codes = [await closed(socket) for socket in sockets]
        assert time.monotonic() - began < 5
    assert codes == [4401, 4401]
    for text in texts:
        assert f'"code":"{code}"' in text.splitlines()[-2]
        assert "[DONE]" not in text
    wait_for(lambda: len(house.ledger(acme)) == 2)
    async with aiohttp.ClientSession() as session:
        for one in both:
            async with session.post(one.url + CHAT, json=body(house), headers=acme.headers) as refused:
                assert (await refused.json())["error"]["code"] == code


@pytest.mark.slow
async def test_a_model_that_is_taken_away_ends_its_streams_and_leaves_sockets_alone(
    gateway: Process, second_gateway: Process, house: House, acme: Actor
) -> None:
    house.adapter(acme, "pirate")
    async with (
        stream(gateway, house, acme) as one,
        stream(second_gateway, house, acme) as other,
        program(gateway, acme) as socket,
    ):
        key_ring.change(caller_of_command(acme.tenant), acme.key, models=["acme/pirate"])
        async with asyncio.timeout(5):
            assert "invalid_api_key" in await one.text()
            assert "invalid_api_key" in await other.text()
        await socket.send('{"type": "ping"}')
        assert await socket.recv() == '{"type":"pong"}'
    async with (
        aiohttp.ClientSession() as session,
        session.get(gateway.url + "/v1/models", headers=acme.headers) as answer,
    ):
        assert [model["id"] for model in (await answer.json())["data"]] == ["acme/pirate"]


async def test_a_gateway_is_told_at_once(gateway: Process, house: House, acme: Actor) -> None:
    """Less than the time for which it remembers a key, however often it was asked."""
    async with aiohttp.ClientSession() as session:

        async def status() -> int:
            async with session.get(gateway.url + "/v1/models", headers=acme.headers) as answer:
                return answer.status

        for _ in range(3):
            assert await status() == 200
            forbid_address(acme)
            await until(status, 403, 1.5)
            key_ring.change(caller_of_command(acme.tenant), acme.key, networks=["127.0.0.1"])
            await until(status, 200, 1.5)


@pytest.mark.slow
async def test_without_being_told_it_takes_seconds(gateway: Process, house: House, acme: Actor) -> None:
    """The listening connections are cut, and the change comes before they are back."""
    async with aiohttp.ClientSession() as session, program(gateway, acme) as socket:

        async def status() -> int:
            async with session.get(gateway.url + "/v1/models", headers=acme.headers) as answer:
                return answer.status

        assert await status() == 200
        with psycopg.connect(settings.DATABASE_DSN, autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'loraplex listener'"
            )
        await asyncio.sleep(0.2)
        assert await status() == 200  # known again, just before it is forgotten
        revoke(acme)
        async with asyncio.timeout(5):
            assert await closed(socket) == 4401
            await until(status, 401, 5)


async def test_refusals_before_admission_are_recorded(gateway: Process, house: House, acme: Actor) -> None:
    expired, secret = ApiKey.issue(acme.tenant, expires_at=timezone.now() + timedelta(hours=1))
    ApiKey.objects.filter(tenant=acme.tenant, pk=expired.pk).update(expires_at=timezone.now())
    elsewhere, outside = ApiKey.issue(acme.tenant, allowed_addresses=["203.0.113.0/24"])
    calls = [
        (acme.secret, "a\0model", 404),
        (acme.secret, "no-such-model", 404),
        (secret.reveal(), house.base.name, 401),
        (secret.reveal(), house.base.name, 401),
        (outside.reveal(), house.base.name, 403),
    ]
    async with aiohttp.ClientSession() as session:
        for key, model, status in calls:
            headers = {"Authorization": f"Bearer {key}"}
            async with session.post(gateway.url + CHAT, json=body(house, model=model), headers=headers) as answer:
                assert answer.status == status

    def recorded() -> dict[tuple[int, str], tuple[int, str]]:
        rows = Denial.objects.filter(tenant=acme.tenant)
        return {(row.key_id, row.code): (row.count, row.last_model) for row in rows}

    wait_for(lambda: len(recorded()) == 3, 5)
    assert recorded() == {
        (acme.key.pk, "model_not_found"): (2, "no-such-model"),
        (expired.pk, "key_expired"): (2, ""),
        (elsewhere.pk, "address_not_allowed"): (1, ""),
    }


async def test_no_worker_is_recorded(gateway: Process, bare_house: House, acme: Actor) -> None:
    async with aiohttp.ClientSession() as session:

        async def status() -> int:
            wanted = body(bare_house, max_tokens=1)
            async with session.post(gateway.url + CHAT, json=wanted, headers=acme.headers) as answer:
                return answer.status

        await until(status, 503, 15)  # once it has noticed that other tests' worker is gone
    wait_for(lambda: Denial.objects.filter(tenant=acme.tenant, code="overloaded").exists(), 5)


async def test_a_suspended_tenants_streams_end_and_its_sockets_say_why(
    gateway: Process, house: House, acme: Actor
) -> None:
    async with stream(gateway, house, acme) as answer, program(gateway, acme) as socket:
        Tenant.objects.filter(pk=acme.tenant.pk).update(state="suspended")
        async with asyncio.timeout(5):
            assert "suspended" in await answer.text()
        await socket.send('{"type": "ping"}')
        assert await socket.recv() == '{"type":"pong"}'


async def test_the_clients_address_comes_from_a_proxy_that_is_trusted(gateway: Process, acme: Actor) -> None:
    """The tests' gateway believes this machine, as it does by default; the last address that is no proxy's counts."""
    _, secret = ApiKey.issue(acme.tenant, allowed_addresses=["203.0.113.0/24", "2001:db8::/32"])
    calls = {
        "203.0.113.9": 200,
        "::ffff:203.0.113.9": 200,
        "2001:db8::9": 200,
        "198.51.100.1, 203.0.113.9": 200,
        "203.0.113.9, 198.51.100.1": 403,  # what a client claims for itself stands first
        "2001:db9::9": 403,
        "somewhere": 403,
        "": 403,
    }
    async with aiohttp.ClientSession() as session:
        for forwarded, status in calls.items():
            headers = {"Authorization": f"Bearer {secret.reveal()}", "X-Forwarded-For": forwarded}
            async with session.get(gateway.url + "/v1/models", headers=headers) as answer:
                assert answer.status == status, forwarded
            async with session.post(gateway.url + CHAT, json={}, headers=headers) as answer:
                assert answer.status == (400 if status == 200 else status), forwarded
