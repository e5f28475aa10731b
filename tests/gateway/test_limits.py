"""What a client sees of its limits: headers, refusals that say whether to try again, a request that was lost."""

from __future__ import annotations

import json

import aiohttp
from django.db import connection

from tenants.models import Denial, Price
from tests.gateway.house import Actor, House, Process, wait_for
from tests.gateway.test_completions import CHAT, body, post


async def test_tokens_have_headers_too(gateway: Process, house: House) -> None:
    actor = house.actor("metered", tokens_per_minute=10_000)
    status, answer, headers = await post(gateway, CHAT, actor, body(house))
    assert status == 200
    held = answer["usage"]["total_tokens"]
    assert headers["x-ratelimit-limit-tokens"] == "10000"
    assert headers["x-ratelimit-remaining-tokens"] == str(10_000 - held)
    assert headers["x-ratelimit-reset-tokens"].endswith("ms")
    assert "x-ratelimit-limit-requests" not in headers


async def test_a_quota_is_not_worth_another_try(gateway: Process, house: House) -> None:
    actor = house.actor("poor", tokens_per_month=20)
    status, answer, headers = await post(gateway, CHAT, actor, body(house, max_tokens=400))
    assert (status, answer["error"]["code"]) == (429, "insufficient_quota")
    assert "tokens_per_month" in answer["error"]["message"]
    assert headers["x-should-retry"] == "false"
    assert int(headers["retry-after"]) > 0

    def recorded() -> Denial | None:
        return Denial.objects.filter(tenant=actor.tenant).first()

    denial = wait_for(recorded)
    assert (denial.code, denial.limit, denial.subject, denial.count) == (
        "insufficient_quota",
        "tokens_per_month",
        "tenant",
        1,
    )
    assert str(denial.last_request_id) == headers["x-request-id"]


async def test_a_rate_is(gateway: Process, house: House) -> None:
    actor = house.actor("eager", requests_per_minute=1)
    assert (await post(gateway, CHAT, actor, body(house)))[0] == 200
    status, answer, headers = await post(gateway, CHAT, actor, body(house))
    assert (status, answer["error"]["code"]) == (429, "rate_limit_exceeded")
    assert "x-should-retry" not in headers
    assert 0 < int(headers["retry-after"]) <= 60


async def test_a_soft_budget_warns(gateway: Process, house: House) -> None:
    Price.objects.create(
        base_model=house.base, input=1_000_000, cached_input=0, output=1_000_000, valid_from="2000-01-01T00:00:00Z"
    )
    actor = house.actor("spender", budget_soft=1)
    first, second = [(await post(gateway, CHAT, actor, body(house)))[2] for _ in range(2)]
    assert "x-loraplex-warning" not in first
    assert "budget" in second["x-loraplex-warning"]


async def test_a_stream_whose_lease_was_lost_is_no_wrong_key(gateway: Process, house: House, acme: Actor) -> None:
    async with aiohttp.ClientSession() as session:
        data = body(house, stream=True, max_tokens=400)
        async with session.post(gateway.url + CHAT, json=data, headers=acme.headers) as answer:
            await answer.content.readuntil(b" 2")
            with connection.cursor() as cursor:
                cursor.execute("UPDATE tenants_inferencerequest SET lease_expires_at = now() WHERE state = 'running'")
            rest = await answer.text()
    error = json.loads(rest.rstrip().rpartition("data: ")[2])["error"]
    assert (error["code"], error["type"]) == ("overloaded", "server_error")
    row = house.one_row(acme)
    assert (row.outcome, row.completion_tokens > 0) == ("cancelled", True)
