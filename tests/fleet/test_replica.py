"""A replica in front of things that are no workers."""

from __future__ import annotations

from collections.abc import AsyncIterator

import aiohttp
import pytest
from aiohttp import web

from fleet.dialects.native import NativeDialect
from fleet.replica import Replica


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as opened:
        yield opened


async def _serve(health: bytes, metrics: bytes) -> tuple[web.AppRunner, str]:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(body=health if request.path == "/health" else metrics)

    app = web.Application()
    app.router.add_get("/{any:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    return runner, site.name


@pytest.mark.parametrize(
    ("health", "metrics", "problem"),
    [
        (b"<html>hello</html>", b"", "JSON"),
        (b"[1, 2]", b"", "JSON object"),
        (b'{"status": "ok"}', b"", "fingerprint"),
        (b'{"fingerprint": "other"}', b"", "serves model other"),
        (b'{"fingerprint": "right"}', b"vllm:num_requests_running inf\nvllm:num_requests_waiting nan\n\xff\xfe", None),
    ],
)
async def test_whatever_answers_refresh_never_raises(
    session: aiohttp.ClientSession, health: bytes, metrics: bytes, problem: str | None
) -> None:
    runner, url = await _serve(health, metrics)
    try:
        replica = Replica(name="w", url=url, fingerprint="right", dialect=NativeDialect(url, session))
        await replica.refresh()
    finally:
        await runner.cleanup()
    assert replica.available == (problem is None)
    if problem is None:
        assert (replica.probe.running, replica.probe.waiting) == (0, 0)
    else:
        assert problem in (replica.problem or "")
