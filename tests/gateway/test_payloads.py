"""Prompts and answers through a real gateway: stored where the tenant wants it, streamed or whole; and over REST."""

from __future__ import annotations

from typing import Any

import aiohttp
from asgiref.sync import sync_to_async
from django.contrib.auth import get_user_model

from tenants import payloads
from tenants.actors import Actor as Doer
from tenants.models import ApiKey, AuditEntry, InferenceRequest, Member, OperatorKey, Payload
from tests.console.samples import finished_batch
from tests.gateway.house import Actor, House, Process, wait_for
from tests.gateway.stub_worker import BREAK_OFF
from tests.gateway.test_completions import CHAT, body, events, post

OWNER = Doer("member", "ada")


def turn_on(actor: Actor, **options: Any) -> None:
    payloads.turn_on(OWNER, actor.tenant, **{"days": 7} | options)


def the_one(actor: Actor) -> Payload:
    return wait_for(lambda: Payload.objects.filter(tenant=actor.tenant).first(), 5)


async def test_a_stream_and_a_whole_answer_are_stored(
    gateway: Process, house: House, acme: Actor, stranger: Actor
) -> None:
    turn_on(acme)
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]
    for stream in (True, False):
        data = body(house, messages=messages, stream=stream)
        await (events if stream else post)(gateway, CHAT, acme, data)
        row = await sync_to_async(the_one)(acme)
        assert row.prompt == messages
        assert row.answers == [" 0 1 2 3 4"]
        Payload.objects.filter(tenant=acme.tenant).delete()
    await post(gateway, CHAT, stranger, body(house))
    house.one_row(stranger)
    assert not Payload.objects.filter(tenant=stranger.tenant).exists()


async def test_choices_text_prompts_and_broken_streams_are_stored(gateway: Process, house: House, acme: Actor) -> None:
    turn_on(acme)
    data = {"model": house.base.name, "prompt": "once upon", "max_tokens": 2, "n": 2}
    assert (await post(gateway, "/v1/completions", acme, data))[0] == 200
    row = await sync_to_async(the_one)(acme)
    assert (row.prompt, row.answers) == ([{"role": "prompt", "content": "once upon"}], [" 0 1", " 0 1"])
    Payload.objects.filter(tenant=acme.tenant).delete()
    await post(gateway, CHAT, acme, body(house, seed=BREAK_OFF))
    row = await sync_to_async(the_one)(acme)
    assert row.answers == [" 0 1 2"], "as far as it came"


async def test_nothing_is_stored_where_nobody_asked(gateway: Process, house: House, acme: Actor) -> None:
    assert (await post(gateway, CHAT, acme, body(house)))[0] == 200
    house.one_row(acme)
    assert not Payload.objects.filter(tenant=acme.tenant).exists()


async def test_a_stranger_reads_and_changes_nothing(
    gateway: Process, house: House, acme: Actor, stranger: Actor
) -> None:
    """Over REST: the owner's settings, their request's payload, and what others get instead."""
    owner, other = (manager(actor) for actor in (acme, stranger))
    settings = "/api/settings/payloads"
    nothing = {"stored": False, "days": None, "operators_may_read": None}
    assert await call(gateway, "GET", settings, owner) == (200, nothing)
    status, refused = await call(gateway, "PUT", settings, owner, {"days": 31})
    assert (status, refused["error"]["param"]) == (400, "days")
    on = {"stored": True, "days": 3, "operators_may_read": False}
    assert await call(gateway, "PUT", settings, owner, {"days": 3}) == (200, on)
    assert await call(gateway, "GET", settings, other) == (200, nothing)
    await post(gateway, CHAT, acme, body(house))
    row = await sync_to_async(the_one)(acme)
    path = f"/api/requests/{row.pk}/payload"
    status, found = await call(gateway, "GET", path, owner)
    assert (status, found["answers"], found["answer_characters"]) == (200, [" 0 1 2 3 4"], 10)
    assert (await call(gateway, "GET", path, other))[0] == 404
    _, secret = OperatorKey.issue("tests")
    operator = {"Authorization": f"Bearer {secret.reveal()}"}
    mine = "/api/operator/tenants/acme/"
    assert (await call(gateway, "GET", mine + f"requests/{row.pk}/payload", operator))[0] == 403
    assert (await call(gateway, "PUT", mine + "settings/payloads", operator, {"days": 3}))[0] == 403
    assert (await call(gateway, "DELETE", settings, other)) == (200, nothing | {"deleted": 0})
    assert (await call(gateway, "DELETE", settings, owner)) == (200, nothing | {"deleted": 1})
    assert (await call(gateway, "GET", path, owner))[0] == 404
    assert InferenceRequest.objects.filter(tenant=acme.tenant, pk=row.pk).exists()


async def test_a_key_that_an_operator_issued_is_an_operator_here(gateway: Process, house: House, acme: Actor) -> None:
    """However it came about: issued, by a key of theirs, or rotated. Rotated by the account it is the account's."""
    _, secret = OperatorKey.issue("tests")
    operator, owner = bearer(secret.reveal()), manager(acme)
    keys, settings = "/api/keys", "/api/settings/payloads"
    wanted = {"scope": "manage"}
    by_operator = await call(gateway, "POST", "/api/operator/tenants/acme/keys", operator, wanted)
    first = bearer(by_operator[1]["api_key"])
    second = bearer((await call(gateway, "POST", keys, first, wanted))[1]["api_key"])
    own = await call(gateway, "POST", keys, owner, wanted)
    rotated = await call(gateway, "POST", f"/api/operator/tenants/acme/keys/{own[1]['id']}/rotate", operator, {})
    theirs = [first, second, bearer(rotated[1]["api_key"])]
    for headers in theirs:
        status, refused = await call(gateway, "PUT", settings, headers, {"days": 3, "operators_may_read": True})
        assert (status, "An operator issued this key" in refused["error"]["message"]) == (403, True)
    turn_on(acme)
    await post(gateway, CHAT, acme, body(house))
    row = await sync_to_async(the_one)(acme)
    path = f"/api/requests/{row.pk}/payload"
    assert [(await call(gateway, "GET", path, headers))[0] for headers in theirs] == [403, 403, 403]
    assert not AuditEntry.objects.filter(tenant=acme.tenant, action="payload.read").exists()
    turn_on(acme, operators_may_read=True)
    assert [(await call(gateway, "GET", path, headers))[0] for headers in theirs] == [200, 200, 200]
    assert AuditEntry.objects.filter(tenant=acme.tenant, action="payload.read").count() == 3
    turn_on(acme)
    freed = await call(gateway, "POST", f"{keys}/{by_operator[1]['id']}/rotate", owner, {})
    assert (await call(gateway, "GET", path, bearer(freed[1]["api_key"])))[0] == 200


async def test_batches_files_are_read_by_the_same_rule(gateway: Process, house: House, acme: Actor) -> None:
    batch = finished_batch(house, acme)
    _, secret = OperatorKey.issue("tests")
    operator = bearer(secret.reveal())
    issued = await call(gateway, "POST", "/api/operator/tenants/acme/keys", operator, {"scope": "inference"})
    theirs, own = bearer(issued[1]["api_key"]), bearer(acme.secret)
    viewer = Member.objects.create(
        tenant=acme.tenant, user=get_user_model().objects.create_user("v"), role=Member.Role.VIEWER
    )
    viewers = bearer(ApiKey.issue(acme.tenant, member=viewer)[1].reveal())

    async def content(headers: dict[str, str]) -> list[int]:
        found = [batch.input_file_id, batch.output_file_id, batch.error_file_id]
        return [await status_of(gateway, f"/v1/files/{file_id}/content", headers) for file_id in found]

    assert await content(own) == [200, 200, 200]
    assert await content(manager(acme)) == [200, 200, 200]
    assert await content(viewers) == [403, 403, 403]
    looks = AuditEntry.objects.filter(tenant=acme.tenant, action="batch.read")
    assert not looks.exists()
    assert await content(theirs) == [200, 200, 200], "it was handed to the customer, who begins with it"
    assert set(looks.values_list("actor_kind", "subject")) == {("key", batch.pk)}
    assert looks.count() == 3
    wanted = {"scope": "manage"}
    managing = await call(gateway, "POST", "/api/operator/tenants/acme/keys", operator, wanted)
    assert await content(bearer(managing[1]["api_key"])) == [403, 403, 403]
    assert looks.count() == 3
    turn_on(acme, operators_may_read=True)
    assert await content(bearer(managing[1]["api_key"])) == [200, 200, 200]
    assert looks.count() == 6


def bearer(text: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {text}"}


async def status_of(gateway: Process, path: str, headers: dict[str, str]) -> int:
    async with aiohttp.ClientSession() as session, session.get(gateway.url + path, headers=headers) as answer:
        return answer.status


def manager(actor: Actor) -> dict[str, str]:
    _, secret = ApiKey.issue(actor.tenant, scope="manage")
    return {"Authorization": f"Bearer {secret.reveal()}"}


async def call(gateway: Process, method: str, path: str, headers: dict[str, str], data: Any = None) -> tuple[int, Any]:
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, gateway.url + path, json=data, headers=headers) as answer,
    ):
        return answer.status, await answer.json()
