"""Connections that do not behave end by themselves."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import pytest

from inference.client import WorkerClient
from inference.errors import AdapterNotFound, InvalidRequest
from tests.inference.front.actors import WorkerProcess
from tests.inference.server.conftest import Start

HEAD_SECONDS = 1.0  # as the fake worker is started


async def send(worker: WorkerProcess, *parts: bytes, pause: float = 0.0) -> tuple[int, Any, float]:
    """Raw bytes on a connection of their own; (status, error, seconds until the other side closed)."""
    loop = asyncio.get_running_loop()
    started = loop.time()
    reader, writer = await asyncio.open_connection("127.0.0.1", int(worker.url.rsplit(":", 1)[1]))
    try:
        for part in parts:
            writer.write(part)
            await asyncio.sleep(pause)
        answer = await asyncio.wait_for(reader.read(), 10)
    finally:
        writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"content-type: application/json" in head.lower()
    assert b"connection: close" in head.lower()
    return int(head.split()[1]), json.loads(body)["error"], loop.time() - started


@pytest.mark.parametrize(
    "parts",
    [
        (),
        (b"GET /health HT",),
        (b"GET /health HTTP/1.1\r\nHost: x\r\n",),
        # A byte now and then is no progress.
        (b"GET /health HTTP/1.1\r\n", *([b"x"] * 7)),
    ],
)
async def test_half_a_head_is_answered_in_time(start: Start, parts: tuple[bytes, ...]) -> None:
    status, error, seconds = await send(start(), *parts, pause=0.1)
    assert (status, error["code"]) == (408, "request_timeout")
    assert HEAD_SECONDS - 0.1 < seconds < HEAD_SECONDS + 2


async def test_a_second_head_is_bounded_as_the_first(start: Start) -> None:
    worker = start()
    reader, writer = await asyncio.open_connection("127.0.0.1", int(worker.url.rsplit(":", 1)[1]))
    writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    await reader.readexactly(length)
    writer.write(b"GET /health HT")
    rest = await asyncio.wait_for(reader.read(), HEAD_SECONDS + 2)
    assert rest.startswith(b"HTTP/1.1 408 ")
    writer.close()


async def test_a_long_head_is_refused(start: Start) -> None:
    status, error, _ = await send(start(), b"GET /health HTTP/1.1\r\nX: ", *([b"y" * 8192] * 8), pause=0.01)
    assert (status, error["code"]) == (431, "headers_too_large")


async def test_what_is_no_http_is_refused_in_the_common_shape(start: Start) -> None:
    worker = start()
    for garbage in (b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n"):
        status, error, _ = await send(worker, garbage)
        assert (status, error["code"]) == (400, "invalid_http")


async def test_a_worker_without_slots_refuses_adapters_by_name(start: Start, session: aiohttp.ClientSession) -> None:
    worker = start("--num-slots", "0")
    client, digest = WorkerClient(worker.url, session), "ab" * 32
    answer = client.generate({"model": digest, "prompt": [1]}, worker.signer.token(adapter=digest))
    with pytest.raises(AdapterNotFound, match="--slots 0"):
        await asyncio.wait_for(anext(answer), 1)
    (worker.store / "x").mkdir()
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        (worker.store / "x" / name).write_bytes(b"{}")
    with pytest.raises(InvalidRequest):
        await client.load_adapter("x", str(worker.store / "x"), worker.signer.operator())
