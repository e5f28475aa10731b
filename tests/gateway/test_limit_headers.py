"""Whoever is known is told of its limits, whatever the answer; a flood of bad requests asks the database once."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import aiohttp
import psycopg
import pytest

from gateway import ratelimit
from gateway.ratelimit import limits_of
from tenants.access import Access
from tenants.limit_state import LimitState
from tenants.models import ApiKey
from tests.gateway.house import Actor, House, Process
from tests.gateway.test_completions import CHAT, body
from tests.gateway.test_files_and_batches import form

TEXT = "/v1/completions"


def _asked(house: House) -> list[tuple[str, str, Any, int]]:
    """Of each route what works, what is malformed and what is not there, as far as it has them."""
    model, chat = house.base.name, body(house)
    text = {"model": model, "prompt": "hi", "max_tokens": 1}
    batch = {"input_file_id": "file-0", "endpoint": CHAT, "completion_window": "24h"}
    return [
        ("POST", CHAT, chat, 200),
        ("POST", CHAT, chat | {"stream": True}, 200),
        ("POST", CHAT, chat | {"foo": 1}, 400),
        ("POST", CHAT, [], 400),
        ("POST", CHAT, chat | {"messages": [{"role": "user", "content": "a " * 60_000}]}, 400),
        ("POST", CHAT, chat | {"model": "nothing"}, 404),
        ("POST", CHAT, chat | {"model": "nothing", "stream": True}, 404),
        ("POST", TEXT, text, 200),
        ("POST", TEXT, text | {"prompt": [1] * 600}, 400),
        ("POST", TEXT, text | {"model": "nothing"}, 404),
        ("GET", "/v1/models", None, 200),
        ("GET", "/v1/models?x=1", None, 400),
        ("GET", f"/v1/models/{model}", None, 200),
        ("GET", "/v1/models/nothing", None, 404),
        ("POST", "/v1/files", form(), 200),
        ("POST", "/v1/files", form(purpose="vision"), 400),
        ("GET", "/v1/files", None, 200),
        ("GET", "/v1/files?limit=0", None, 400),
        ("GET", "/v1/files/file-0", None, 404),
        ("GET", "/v1/files/file-0/content", None, 404),
        ("DELETE", "/v1/files/file-0", None, 404),
        ("POST", "/v1/batches", batch, 404),
        ("POST", "/v1/batches", {}, 400),
        ("GET", "/v1/batches", None, 200),
        ("GET", "/v1/batches?limit=0", None, 400),
        ("GET", "/v1/batches/batch_0", None, 404),
        ("POST", "/v1/batches/batch_0/cancel", None, 404),
    ]


async def _answers(gateway: Process, house: House, actor: Actor) -> list[tuple[str, int, dict[str, str]]]:
    found = []
    async with aiohttp.ClientSession(headers=actor.headers) as session:
        for method, path, data, status in _asked(house):
            sent = {"data" if isinstance(data, aiohttp.FormData) else "json": data}
            async with session.request(method, gateway.url + path, **sent) as answer:
                assert answer.status == status, (method, path, await answer.text())
                limits = {name: value for name, value in answer.headers.items() if name.startswith("x-ratelimit-")}
                found.append((f"{method} {path}", status, limits))
    return found


async def test_every_answer_has_them(gateway: Process, house: House) -> None:
    actor = house.actor("metered", requests_per_minute=1_000, tokens_per_minute=60_000)
    for route, status, limits in await _answers(gateway, house, actor):
        assert len(limits) == 6, (route, status, limits)
        assert limits["x-ratelimit-limit-requests"] == "1000"
        assert 990 < int(limits["x-ratelimit-remaining-requests"]) <= 1_000
        assert limits["x-ratelimit-limit-tokens"] == "60000"
        assert limits["x-ratelimit-reset-tokens"].endswith("s")


async def test_what_is_not_limited_has_none(gateway: Process, house: House) -> None:
    actor = house.actor("half", requests_per_minute=1_000)
    for route, _, limits in await _answers(gateway, house, actor):
        assert {name.rpartition("-")[2] for name in limits} == {"requests"}, route


async def test_who_is_refused_is_told_nothing(gateway: Process, house: House) -> None:
    actor = house.actor("elsewhere", requests_per_minute=1_000)
    ApiKey.objects.filter(tenant=actor.tenant).update(allowed_addresses=["203.0.113.0/24"])
    async with aiohttp.ClientSession() as session:
        for headers, status in ((actor.headers, 403), ({"Authorization": "Bearer lpx_x"}, 401)):
            for method, path in (("POST", CHAT), ("GET", "/v1/models"), ("GET", "/v1/files"), ("POST", "/v1/files")):
                async with session.request(method, gateway.url + path, headers=headers) as answer:
                    assert answer.status == status
                    assert not any(name.startswith("x-ratelimit-") for name in answer.headers)


class _Pool:
    """Asked for nothing."""


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What was asked of the database."""
    asked: list[tuple[Any, ...]] = []

    async def look(_: Any, *subject: Any) -> LimitState:
        asked.append(subject)
        await asyncio.sleep(0)
        return LimitState.of_standing([])

    monkeypatch.setattr(ratelimit, "limits_now", look)
    return asked


async def test_a_flood_asks_once(acme: Actor, looks: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    pool: Any = _Pool()
    access = Access(acme.key.pk, acme.tenant.pk, acme.tenant.slug, None, {})
    await asyncio.gather(*(limits_of(pool, access) for _ in range(50)))
    await limits_of(pool, access)
    assert looks == [(acme.tenant.pk, None, acme.key.pk)]
    monkeypatch.setattr(ratelimit, "TTL_SECONDS", 0.0)
    await limits_of(pool, access)
    assert len(looks) == 2


async def test_an_answer_does_not_wait_for_the_database(acme: Actor, monkeypatch: pytest.MonkeyPatch) -> None:
    access = Access(acme.key.pk, acme.tenant.pk, acme.tenant.slug, None, {})

    async def hangs(*_: Any) -> LimitState:
        await asyncio.Event().wait()
        raise AssertionError

    async def gives_up_late(*_: Any) -> LimitState:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        await asyncio.sleep(60)
        raise AssertionError

    async def is_away(*_: Any) -> LimitState:
        raise psycopg.OperationalError

    monkeypatch.setattr(ratelimit, "LOOK_SECONDS", 0.01)
    for look in (hangs, is_away, gives_up_late):
        pool: Any = _Pool()
        monkeypatch.setattr(ratelimit, "limits_now", look)
        async with asyncio.timeout(5):
            assert await limits_of(pool, access) is None
