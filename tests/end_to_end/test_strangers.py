"""A worker killed in mid-stream, and what a stranger can learn: nothing. With real workers."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import aiohttp
import pytest
from django.conf import settings

from gateway.embedded.process import last_lines, spawn, stop
from tests.conftest import GrantKeys, WorkerProcess
from tests.end_to_end.conftest import RealHouse
from tests.gateway.house import Actor, House, Process, wait_for

pytestmark = pytest.mark.slow

CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "Tell me a long story."}]


async def test_a_killed_worker_ends_the_stream_with_an_error_and_one_row(
    gateway: Process, transactional_db: None, tiny_model_dir: Path, grant_keys: GrantKeys, tmp_path: Path
) -> None:
    log = tmp_path / "worker.log"
    command = [sys.executable, "-m", "inference", "--model", tiny_model_dir, "--adapter-store", settings.ADAPTER_STORE]
    settings.ADAPTER_STORE.mkdir(parents=True, exist_ok=True)
    process = spawn([*command, "--grant-key", grant_keys.public, "--host", "127.0.0.1", "--port", "0"], log)
    try:
        wait_for(lambda: process.poll() is not None or "ready http" in log.read_text(), 60)
        assert process.poll() is None, last_lines(log)
        house = House(tiny_model_dir)
        house.base.context_length = 10**6
        house.base.save()
        house.worker(log.read_text().split("ready ")[1].split()[0])
        acme = house.actor("acme")
        body = {"model": house.base.name, "messages": MESSAGES, "stream": True, "ignore_eos": True, "max_tokens": 180}
        async with (
            aiohttp.ClientSession() as session,
            session.post(gateway.url + CHAT, json=body, headers=acme.headers) as answer,
        ):
            assert answer.status == 200, await answer.text()
            got = 0
            while got < 3:
                got += (await answer.content.readline()).startswith(b"data: ")
            os.killpg(process.pid, signal.SIGKILL)
            rest = await asyncio.wait_for(answer.text(), 20)
        events = [line.removeprefix("data: ") for line in rest.splitlines() if line.startswith("data: ")]
        assert "error" in json.loads(events[-1])
        assert "[DONE]" not in events
        row = house.one_row(acme)
        assert (row.outcome, row.prompt_tokens > 0, row.completion_tokens > 0) == ("failed", True, True)
        status = None
        async with (
            aiohttp.ClientSession() as session,
            session.post(gateway.url + CHAT, json=body, headers=acme.headers) as answer,
        ):
            status = answer.status
            assert "retry-after" in answer.headers
        assert status in {502, 503}
    finally:
        stop(process)


async def test_a_stranger_gets_neither_the_adapter_nor_a_sign_of_it(
    gateway: Process, house: RealHouse, acme: Actor, globex: Actor, worker: WorkerProcess
) -> None:
    """Also once the adapter is resident at the worker, and also at the worker itself."""
    name = house.add(acme, "pirate")
    digest = acme.tenant.adapters.get(name="pirate").current.digest
    fields = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
    async with aiohttp.ClientSession() as session:
        async with session.post(gateway.url + CHAT, json={"model": name, **fields}, headers=acme.headers) as answer:
            assert answer.status == 200, await answer.text()
        for model in (name, "pirate", digest, f"globex/{digest}", f"acme/{digest}"):
            async with session.post(
                gateway.url + CHAT, json={"model": model, **fields}, headers=globex.headers
            ) as answer:
                assert answer.status == 404
                assert (await answer.json())["error"]["code"] == "model_not_found"
        # The worker takes no key at all, only the gateway's grants.
        for headers in ({}, globex.headers, {"Authorization": "Bearer x.y.z"}):
            body = {"model": digest, "prompt": [1, 2, 3], "max_tokens": 4}
            async with session.post(worker.url + "/v1/completions", json=body, headers=headers) as answer:
                assert answer.status in {401, 403}
                assert digest not in await answer.text()
    assert house.ledger(globex) == []
