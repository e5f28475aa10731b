"""Several choices of one request, against a worker that counts."""

from __future__ import annotations

from typing import Any

import aiohttp
import pytest

from tests.gateway.house import Actor, House, Process
from tests.gateway.stub_worker import BREAK_OFF, STRAY
from tests.gateway.test_completions import CHAT, body, events, post


async def test_choices_come_apart_and_are_billed_together(gateway: Process, house: House, acme: Actor) -> None:
    status, answer, _ = await post(gateway, CHAT, acme, body(house, n=3))
    assert status == 200
    assert [(choice["index"], choice["message"]["content"]) for choice in answer["choices"]] == [
        (index, " 0 1 2 3 4") for index in range(3)
    ]
    assert answer["usage"]["completion_tokens"] == 15
    row = house.one_row(acme)
    assert (row.prompt_tokens, row.completion_tokens) == (answer["usage"]["prompt_tokens"], 15)


async def test_a_stream_of_choices(gateway: Process, house: House, acme: Actor) -> None:
    fields = body(house, n=3, stream=True, stream_options={"include_usage": True})
    *chunks, usage, done = await events(gateway, CHAT, acme, fields)
    assert done == "[DONE]"
    assert usage["usage"]["completion_tokens"] == 15
    for index in range(3):
        mine = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == index]
        assert mine[0]["delta"] == {"role": "assistant", "content": ""}
        assert "".join(choice["delta"].get("content", "") for choice in mine) == " 0 1 2 3 4"
        assert [choice["finish_reason"] for choice in mine] == [None] * (len(mine) - 1) + ["length"]


async def test_a_client_that_leaves_pays_for_all_choices(gateway: Process, house: House, acme: Actor) -> None:
    data = body(house, stream=True, max_tokens=300, n=4)
    async with (
        aiohttp.ClientSession() as session,
        session.post(gateway.url + CHAT, json=data, headers=acme.headers) as answer,
    ):
        await answer.content.readuntil(b" 3")
        answer.close()
    row = house.one_row(acme)
    assert row.outcome == "cancelled"
    assert row.prompt_tokens > 0
    assert 13 <= row.completion_tokens < 400


@pytest.mark.parametrize(("way", "tokens"), [(BREAK_OFF, 9), (STRAY, 0)])
async def test_a_worker_that_fails_ends_all_choices(
    gateway: Process, house: House, acme: Actor, way: int, tokens: int
) -> None:
    status, answer, _ = await post(gateway, CHAT, acme, body(house, n=3, seed=way))
    assert (status, answer["error"]["code"]) == (502, "worker_lost")
    row = house.one_row(acme)
    assert (row.outcome, row.completion_tokens) == ("failed", tokens)


@pytest.mark.parametrize(
    ("limits", "fields", "param"),
    [
        ({"max_output_tokens": 30}, {"n": 4, "max_tokens": 8}, "max_tokens"),
        ({"max_input_tokens": 3}, {"n": 4, "max_tokens": 1}, "messages"),
        ({}, {"n": 4, "max_tokens": 2000}, "messages"),
    ],
)
async def test_limits_hold_for_all_choices_together(
    gateway: Process, house: House, limits: dict[str, Any], fields: dict[str, Any], param: str
) -> None:
    actor = house.actor("limited", **limits)
    status, answer, _ = await post(gateway, CHAT, actor, body(house, **fields))
    assert (status, answer["error"]["param"]) == (400, param), answer
    assert house.ledger(actor) == []
    if "max_output_tokens" in limits:
        status, answer, _ = await post(gateway, CHAT, actor, body(house, n=4, max_tokens=7))
        assert status == 200


async def test_the_context_is_each_choices_own(gateway: Process, house: House, acme: Actor) -> None:
    """512 positions: three choices of 300 tokens fit, though not one after the other."""
    status, answer, _ = await post(gateway, CHAT, acme, body(house, n=3, max_tokens=300))
    assert status == 200, answer
    assert answer["usage"]["completion_tokens"] == 900
