"""An operator suspends a tenant over the API of one gateway process: its running stream in that process ends."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import aiohttp

from tenants.models import OperatorKey
from tests.gateway.house import House, Process


async def test_a_suspended_tenants_stream_ends_within_five_seconds(
    house: House, gateway: Process, acme: Any, stranger: Any
) -> None:
    _, secret = OperatorKey.issue("tests")
    operator = {"Authorization": f"Bearer {secret.reveal()}"}
    body = {
        "model": house.base.name,
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 400,
        "stream": True,
    }
    url = f"{gateway.url}/v1/chat/completions"
    async with aiohttp.ClientSession() as session:

        async def stream(headers: dict[str, str], begun: asyncio.Event) -> tuple[str, float]:
            text = ""
            async with session.post(url, json=body, headers=headers) as answer:
                assert answer.status == 200, await answer.text()
                async for line in answer.content:
                    text += line.decode()
                    begun.set()
            return text, time.monotonic()

        begun, other_begun = asyncio.Event(), asyncio.Event()
        theirs = asyncio.create_task(stream(acme.headers, begun))
        others = asyncio.create_task(stream(stranger.headers, other_begun))
        await asyncio.gather(begun.wait(), other_begun.wait())
        path = f"{gateway.url}/api/operator/tenants/acme"
        async with session.post(f"{path}/suspend", json={"reason": "unpaid"}, headers=operator) as answer:
            assert (answer.status, (await answer.json())["state"]) == (200, "suspended")
        suspended = time.monotonic()
        text, ended = await theirs
        assert ended - suspended < 5
        assert '"code":"tenant_suspended"' in text
        assert "invalid_api_key" not in text
        assert "[DONE]" not in text
        async with session.post(url, json=body, headers=acme.headers) as answer:
            assert answer.status == 403
        text, _ = await others
        assert text.rstrip().endswith("data: [DONE]"), "nobody else notices"
