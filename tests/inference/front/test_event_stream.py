"""A stream's signs of life, and that what fails after them is the same to the client as before."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from inference import client as client_module
from inference.client import WorkerClient
from inference.errors import (
    AdapterInvalid,
    AdapterNotFound,
    EngineDead,
    GrantRefused,
    InferenceError,
    InvalidRequest,
    Overloaded,
    UnknownField,
)
from inference.front import event_stream
from inference.front.chunks import DONE
from inference.front.errors import api_error
from inference.front.event_stream import WAITING, EventStream

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

QUIET = 0.05
ASKED = {"model": "m", "prompt": [1]}


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "QUIET_SECONDS", QUIET)


class Wire:
    """What was sent; ``read`` lets it through."""

    def __init__(self) -> None:
        self.messages: list[Any] = []
        self.read = asyncio.Event()
        self.read.set()

    async def __call__(self, message: Any) -> None:
        await self.read.wait()
        self.messages.append(message)

    @property
    def parts(self) -> list[bytes]:
        return [message["body"] for message in self.messages if message["type"] == "http.response.body"]

    @property
    def statuses(self) -> list[int]:
        return [message["status"] for message in self.messages if message["type"] == "http.response.start"]


async def well() -> bool:
    return True


async def hangs() -> bool:
    return False


async def test_silence_is_broken_before_and_between_events() -> None:
    wire = Wire()
    async with EventStream(wire, well) as stream:
        await asyncio.sleep(3.5 * QUIET)
        await stream.event(b"one")
        await asyncio.sleep(1.5 * QUIET)
        await stream.event(b"two", last=True)
        await asyncio.sleep(2.5 * QUIET)
    first, second = wire.parts.index(b"one"), wire.parts.index(b"two")
    assert wire.statuses == [200]
    assert first >= 1
    assert second >= first + 2
    assert set(wire.parts) == {WAITING, b"one", b"two"}
    assert wire.parts[-1] == b"two", "something came after the end"
    assert [message["more_body"] for message in wire.messages[1:]] == [True] * (len(wire.parts) - 1) + [False]


async def test_a_stream_that_speaks_has_no_comments() -> None:
    wire = Wire()
    async with EventStream(wire, well) as stream:
        for _ in range(30):
            await stream.event(b"token")
            await asyncio.sleep(QUIET / 10)
    assert wire.parts == [b"token"] * 30


async def test_a_core_that_hangs_is_not_covered_up() -> None:
    """And what fails then still has its own status."""
    wire = Wire()
    async with EventStream(wire, hangs) as stream:
        await asyncio.sleep(3.5 * QUIET)
        assert wire.messages == []
        await stream.fail(api_error(EngineDead("gone")))
        await asyncio.sleep(2.5 * QUIET)
    assert wire.statuses == [503]
    assert len(wire.parts) == 1


async def test_a_reader_that_does_not_read_gathers_no_comments() -> None:
    wire = Wire()
    async with EventStream(wire, well) as stream:
        wire.read.clear()
        event = asyncio.create_task(stream.event(b"one"))
        await asyncio.sleep(4.5 * QUIET)
        wire.read.set()
        await event
        assert wire.parts == [b"one"]


@asynccontextmanager
async def serving(routes: dict[str, Handler]) -> AsyncIterator[str]:
    """The address of a server with these."""
    app = web.Application()
    app.add_routes([web.post(path, handler) for path, handler in routes.items()])
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def stream_of(request: web.Request, parts: Iterable[bytes], pause: float = 0.0) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for part in parts:
        await response.write(part)
        await asyncio.sleep(pause)
    return response


def failing(error: InferenceError) -> dict[str, Handler]:
    """At ``/early`` by a status, at ``/late`` after the head and a comment."""
    failure = api_error(error)

    async def early(_: web.Request) -> web.Response:
        response = failure.response()
        return web.Response(status=response.status_code, headers=dict(response.headers), body=bytes(response.body))

    async def late(request: web.Request) -> web.StreamResponse:
        return await stream_of(request, (WAITING, failure.event()))

    return {"/early/v1/completions": early, "/late/v1/completions": late}


@pytest.mark.parametrize(
    "error",
    [
        InvalidRequest("wrong", "prompt"),
        InvalidRequest("wrong as a whole"),
        UnknownField("colour"),
        AdapterInvalid("broken", "adapter_config.json"),
        AdapterNotFound("no such digest"),
        GrantRefused("not for this"),
        Overloaded("full", 7.2),
        EngineDead("gone"),
        InferenceError("a bug"),
    ],
    ids=lambda error: f"{type(error).__name__} {error}",
)
async def test_a_late_error_is_the_same_as_an_early_one(session: aiohttp.ClientSession, error: InferenceError) -> None:
    found = []
    async with serving(failing(error)) as url:
        for when in ("early", "late"):
            with pytest.raises(InferenceError) as raised:
                await anext(WorkerClient(f"{url}/{when}", session).generate(ASKED, "grant"))
            found.append((type(raised.value), str(raised.value), vars(raised.value)))
    assert found[0] == found[1]
    if isinstance(error, Overloaded):
        assert found[0][2] == {"retry_after": 8.0}


async def test_the_client_skips_comments(session: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever they stand and however they are cut; and each of them ends a silence."""
    monkeypatch.setattr(client_module, "SILENCE_SECONDS", 0.5)
    token = b'data: {"choices":[{"index":0,"text":"a","token_ids":[1],"finish_reason":null}]}\n\n'

    parts = (WAITING, WAITING[:3], WAITING[3:], token, WAITING + token + WAITING, WAITING, b": data: x\n\n", DONE)

    async def answer(request: web.Request) -> web.StreamResponse:
        return await stream_of(request, parts, pause=0.2)

    async with serving({"/v1/completions": answer}) as url:
        deltas = [delta async for delta in WorkerClient(url, session).generate(ASKED, "grant")]
    assert [delta.text for delta in deltas] == ["a", "a"]
