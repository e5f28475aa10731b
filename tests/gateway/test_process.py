"""The process: draining on SIGTERM, health, the OpenAPI document, the page's static files."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path

import aiohttp
import pytest

from tests.gateway.house import Actor, House, Process, started_gateway, wait_for
from tests.gateway.stub_worker import CACHED, EARLY, SILENT

CHAT = "/v1/chat/completions"


@pytest.mark.slow
async def test_sigterm_lets_streams_finish_and_refuses_new_ones(house: House, acme: Actor, tmp_path: Path) -> None:
    body = {
        "model": house.base.name,
        "messages": [{"role": "user", "content": "hi"}],
        "stream": True,
        "max_tokens": 100,
    }
    with started_gateway(tmp_path) as own:
        async with (
            aiohttp.ClientSession() as session,
            session.post(own.url + CHAT, json=body, headers=acme.headers) as answer,
        ):
            await answer.content.readuntil(b" 2")
            own.process.send_signal(signal.SIGTERM)
            await asyncio.sleep(0.3)
            async with session.post(own.url + CHAT, json=body, headers=acme.headers) as refused:
                assert refused.status == 503
                assert (await refused.json())["error"]["code"] == "overloaded"
            async with session.get(own.url + "/health") as health:
                assert (health.status, await health.json()) == (503, {"status": "draining"})
            assert (await answer.text()).endswith("data: [DONE]\n\n")
        assert wait_for(lambda: own.process.poll() is not None, 15)
    (row,) = house.ledger(acme)
    assert (row.outcome, row.completion_tokens) == ("completed", 100)


@pytest.mark.slow
@pytest.mark.parametrize("stream", [True, False])
async def test_what_a_deploy_stops_before_its_first_token_costs_nothing(
    house: House, acme: Actor, tmp_path: Path, stream: bool
) -> None:
    messages = [{"role": "user", "content": "hi"}]
    body = {"model": house.base.name, "messages": messages, "stream": stream, "max_tokens": 100, "seed": SILENT}
    with started_gateway(tmp_path, DRAIN_SECONDS="0.5") as own:
        async with aiohttp.ClientSession() as session:
            asked = asyncio.create_task(session.post(own.url + CHAT, json=body, headers=acme.headers))
            async with asyncio.timeout(10):
                while house.running(acme) == 0:  # noqa: ASYNC110 - the database sets no event
                    await asyncio.sleep(0.01)
            await asyncio.sleep(0.3)  # it is at the worker
            own.process.send_signal(signal.SIGTERM)
            async with await asked as answer:
                assert answer.status == 503
                assert "shutting down" in (await answer.json())["error"]["message"]
        assert wait_for(lambda: own.process.poll() is not None, 15)
    row = house.one_row(acme)
    assert (row.outcome, row.prompt_tokens, row.completion_tokens, row.cost) == ("cancelled", 0, 0, 0)


@pytest.mark.slow
async def test_a_gateway_killed_in_mid_stream_is_settled_by_the_reaper(
    house: House, acme: Actor, tmp_path: Path
) -> None:
    """At the last checkpoint: at most about a second of tokens is lost, none is billed twice, and what of its
    prompt was cached is billed as that."""
    from datetime import UTC, datetime, timedelta

    from tenants.db import open_pool
    from tenants.settlement import reap

    body = {
        "model": house.base.name,
        "messages": [{"role": "user", "content": "hi"}],
        "stream": True,
        "max_tokens": 400,
        "seed": EARLY,
    }
    with started_gateway(tmp_path) as own:
        async with (
            aiohttp.ClientSession() as session,
            session.post(own.url + CHAT, json=body, headers=acme.headers) as answer,
        ):
            await answer.content.readuntil(b" 90")
            own.process.kill()
            with pytest.raises(aiohttp.ClientError):
                await answer.text()
    assert house.running(acme) == 1
    async with open_pool(min_size=1) as pool:
        assert await reap(pool) == 0  # its lease still stands
        late = datetime.now(UTC) + timedelta(seconds=60)
        assert await reap(pool, now=late) == 1
        assert await reap(pool, now=late) == 0
    row = house.one_row(acme)
    assert row.outcome == "abandoned"
    assert 20 <= row.completion_tokens <= 100
    assert row.cached_tokens == CACHED < row.prompt_tokens


async def test_the_openapi_document_is_served(gateway: Process) -> None:
    async with aiohttp.ClientSession() as session, session.get(gateway.url + "/api/openapi.json") as answer:
        document = await answer.json()
    assert set(document["paths"]) >= {  # test_openapi.py: that it is complete and valid
        "/v1/chat/completions", "/v1/completions", "/v1/models", "/v1/models/{model_id}", "/v1/ws",
        "/api/ws-tickets", "/api/usage", "/health",
    }  # fmt: skip
    schemas = document["components"]["schemas"]
    text = json.dumps(document)
    for reference in {part.split('"')[0] for part in text.split('"#/components/schemas/')[1:]}:
        assert reference in schemas
    assert schemas["ChatRequest"]["additionalProperties"] is False


async def test_static_files_and_pages(gateway: Process) -> None:
    async with aiohttp.ClientSession() as session:
        for path, kind in (
            ("/static/console/chat.js", "text/javascript"),
            ("/static/console/vendor/pico.min.css", "text/css"),
            ("/admin/login/", "text/html"),
        ):
            async with session.get(gateway.url + path) as answer:
                assert (answer.status, answer.content_type) == (200, kind)
                assert "default-src 'none'" in answer.headers["content-security-policy"]
        for path, status in (("/nothing", 404), ("/accounts/sign-out", 405)):
            async with session.get(gateway.url + path) as answer:
                assert (answer.status, answer.content_type) == (status, "text/html")
                assert "To the console" in await answer.text()
