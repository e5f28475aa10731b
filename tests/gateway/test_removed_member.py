"""A removed member's running stream ends, as after any revocation."""

from __future__ import annotations

import asyncio
import time

import aiohttp
import pytest
from django.contrib.auth import get_user_model

from tenants import membership
from tenants.actors import Actor as Doer
from tenants.models import InferenceRequest, Member
from tests.gateway.house import Actor, House, Process, wait_for

CHAT = "/v1/chat/completions"


@pytest.mark.slow
async def test_a_removed_members_stream_ends_within_seconds_and_is_billed_once(
    gateway: Process, house: House, acme: Actor
) -> None:
    user = get_user_model().objects.create_user("eve")
    member = acme.key.member = Member.objects.create(tenant=acme.tenant, user=user, role="developer")
    acme.key.save()
    body = {"model": house.base.name, "messages": [{"role": "user", "content": "hi"}], "stream": True}
    async with (
        aiohttp.ClientSession() as session,
        session.post(gateway.url + CHAT, json={**body, "max_tokens": 400}, headers=acme.headers) as answer,
    ):
        await answer.content.readuntil(b" 3")
        number = member.pk
        membership.remove(Doer("command", "tests"), member)
        began = time.monotonic()
        async with asyncio.timeout(5):
            text = await answer.text()
        assert time.monotonic() - began < 5
        assert '"code":"invalid_api_key"' in text.splitlines()[-2]
        async with session.post(gateway.url + CHAT, json=body, headers=acme.headers) as refused:
            assert refused.status == 401
    wait_for(lambda: len(house.ledger(acme)) == 1)
    assert InferenceRequest.objects.get(tenant=acme.tenant).member_id == number
