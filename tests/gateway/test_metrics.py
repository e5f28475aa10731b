"""The gateway's own figures, for whoever scrapes them with an operator's key."""

from __future__ import annotations

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from tenants.models import OperatorKey
from tests.gateway.house import Actor, House, Process
from tests.gateway.test_completions import CHAT, body, post


async def scrape(gateway: Process, secret: str) -> dict[str, float]:
    headers = {"Authorization": f"Bearer {secret}"}
    async with aiohttp.ClientSession() as session, session.get(gateway.url + "/metrics", headers=headers) as answer:
        assert answer.status == 200, await answer.text()
        families = text_string_to_metric_families(await answer.text())
    return {
        f"{sample.name}{''.join(sample.labels.values())}": sample.value
        for family in families
        for sample in family.samples
    }


async def test_operators_read_totals_and_nobody_else(gateway: Process, house: House, acme: Actor) -> None:
    _, secret = OperatorKey.issue("scraper")
    before = await scrape(gateway, secret.reveal())
    assert (await post(gateway, CHAT, acme, body(house)))[0] == 200
    assert (await post(gateway, CHAT, acme, body(house, model="nobody/nothing")))[0] == 404
    after = await scrape(gateway, secret.reveal())

    def gained(name: str) -> float:
        return after[f"loraplex_gateway_{name}"] - before.get(f"loraplex_gateway_{name}", 0.0)

    assert gained("requests_ended_totalcompleted") == 1
    assert gained("tokens_totalcompletion") == 5
    assert gained("errors_totalmodel_not_found") == 1
    assert gained("first_token_seconds_count") == gained("first_token_seconds_bucket+Inf") == 1
    assert 0 < gained("first_token_seconds_sum") < 10
    assert not [name for name in after if "acme" in name]
    async with aiohttp.ClientSession() as session:
        for headers in ({}, acme.headers):
            async with session.get(gateway.url + "/metrics", headers=headers) as answer:
                assert answer.status in {401, 403}
                assert (await answer.json())["error"]["code"]
