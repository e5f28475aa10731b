"""Prompts and answers are stored where a tenant turned it on, for as long as it says, and for nobody else to read."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest
from asgiref.sync import sync_to_async
from django.core.management import CommandError, call_command
from django.utils import timezone

from tenants import payload_log, payloads, tasks
from tenants.actors import Actor
from tenants.db import Pool
from tenants.errors import Forbidden, Invalid, NotFound
from tenants.models import AuditEntry, Payload, PayloadStoring
from tenants.payload_log import MOST_CHARACTERS, Kept

pytestmark = pytest.mark.usefixtures("grant_keys", "orm_thread")

OWNER, OPERATOR = Actor("member", "ada"), Actor("operator", "root")


@pytest.fixture
def acme(world: Any) -> Any:
    return world.actor("acme")


def kept(*messages: tuple[str, str], answer: str = "Four.") -> Kept:
    made = Kept.of(messages or [("user", "2 + 2?")])
    made.gained(0, answer)
    return made


async def write(pool: Pool, actor: Any, request_id: UUID, what: Kept) -> None:
    payload_log.note(pool, request_id, actor.tenant.pk, what)
    await payload_log.flush(pool)


turn_on = sync_to_async(payloads.turn_on)
turn_off = sync_to_async(payloads.turn_off)
read = sync_to_async(payloads.read)


@sync_to_async
def count() -> int:
    return Payload.objects.unscoped().count()


async def test_nothing_is_stored_unless_it_was_turned_on(acme: Any, admitted: Any, db_pool: Pool) -> None:
    request_id = await admitted(acme)
    await write(db_pool, acme, request_id, kept())
    assert await count() == 0
    with pytest.raises(NotFound):
        await read(OWNER, acme.tenant, str(request_id))
    await turn_on(OWNER, acme.tenant, days=7)
    await write(db_pool, acme, request_id, kept())
    await write(db_pool, acme, request_id, kept(answer="again"))
    row = await read(OWNER, acme.tenant, str(request_id))
    assert (row.prompt, row.answers) == ([{"role": "user", "content": "2 + 2?"}], ["Four."])
    assert (row.prompt_characters, row.answer_characters) == (6, 5)


async def test_turning_it_off_deletes_all_of_it_and_nothing_of_others(
    acme: Any, world: Any, admitted: Any, db_pool: Pool
) -> None:
    other = await sync_to_async(world.actor)("other")
    for actor in (acme, other):
        await turn_on(OWNER, actor.tenant, days=1)
    ids = [await admitted(acme), await admitted(acme), await admitted(other)]
    for actor, request_id in zip((acme, acme, other), ids, strict=True):
        await write(db_pool, actor, request_id, kept())
    assert await turn_off(OWNER, acme.tenant) == 2
    assert await turn_off(OWNER, acme.tenant) == 0
    await write(db_pool, acme, ids[0], kept())
    assert await count() == 1
    with pytest.raises(NotFound):
        await read(OWNER, acme.tenant, str(ids[2]))
    actions = await sync_to_async(lambda: list(AuditEntry.objects.filter(tenant=acme.tenant).order_by("pk")))()
    assert [entry.action for entry in actions] == ["payloads.storing_set", "payloads.storing_ended"]
    assert actions[1].after == {"deleted": 2}


@pytest.mark.parametrize("days", [0, -1, 31])
async def test_wrong_days_are_named(days: int, acme: Any) -> None:
    with pytest.raises(Invalid, match="1 to 30 days") as caught:
        await turn_on(OWNER, acme.tenant, days=days)
    assert caught.value.param == "days"


async def test_operators_read_what_the_tenant_lets_them_and_it_is_recorded(
    acme: Any, admitted: Any, db_pool: Pool
) -> None:
    with pytest.raises(Forbidden, match="own owners"):
        await turn_on(OPERATOR, acme.tenant, days=7, operators_may_read=True)
    await turn_on(OWNER, acme.tenant, days=7)
    request_id = await admitted(acme)
    await write(db_pool, acme, request_id, kept())
    with pytest.raises(Forbidden, match="does not allow operators"):
        await read(OPERATOR, acme.tenant, str(request_id))
    await turn_on(OWNER, acme.tenant, days=7, operators_may_read=True)
    assert (await read(OPERATOR, acme.tenant, str(request_id))).answers == ["Four."]
    looks = await sync_to_async(
        lambda: list(AuditEntry.objects.filter(tenant=acme.tenant, action="payload.read").values_list("subject"))
    )()
    assert looks == [(str(request_id),)]


async def test_it_is_over_in_time_and_a_shorter_time_counts_for_what_is_there(
    acme: Any, admitted: Any, db_pool: Pool
) -> None:
    await turn_on(OWNER, acme.tenant, days=30)
    old, new = await admitted(acme), await admitted(acme)
    for request_id in (old, new):
        await write(db_pool, acme, request_id, kept())
    aged = timezone.now() - timedelta(days=3)
    await sync_to_async(Payload.objects.filter(tenant=acme.tenant, pk=old).update)(created_at=aged)
    assert await sync_to_async(tasks.forget_payloads)() == 0
    await turn_on(OWNER, acme.tenant, days=2)
    with pytest.raises(NotFound):
        await read(OWNER, acme.tenant, str(old))
    assert await sync_to_async(tasks.forget_payloads)() == 1
    assert (await read(OWNER, acme.tenant, str(new))).pk == new


async def test_long_ones_are_cut_and_say_so(acme: Any, admitted: Any, db_pool: Pool) -> None:
    await turn_on(OWNER, acme.tenant, days=7)
    request_id, long = await admitted(acme), "é" * (MOST_CHARACTERS - 1)
    what = kept(("system", long), ("user", "xyz"), ("user", "never"), answer="")
    for _ in range(3):
        what.gained(1, "a" * MOST_CHARACTERS)
    what.gained(0, "b")
    await write(db_pool, acme, request_id, what)
    row = await read(OWNER, acme.tenant, str(request_id))
    assert [len(message["content"]) for message in row.prompt] == [MOST_CHARACTERS - 1, 1]
    assert row.prompt_characters == MOST_CHARACTERS + 7
    assert row.answers == ["a" * MOST_CHARACTERS]
    assert row.answer_characters == 3 * MOST_CHARACTERS + 1


async def test_what_a_database_cannot_hold_does_not_lose_the_others(acme: Any, admitted: Any, db_pool: Pool) -> None:
    await turn_on(OWNER, acme.tenant, days=7)
    odd, fine = await admitted(acme), await admitted(acme)
    payload_log.note(db_pool, odd, acme.tenant.pk, kept(("user", "a\0b\ud800c")))
    payload_log.note(db_pool, fine, acme.tenant.pk, kept())
    await payload_log.flush(db_pool)
    assert (await read(OWNER, acme.tenant, str(odd))).prompt[0]["content"] == "a\ufffdb?c"
    assert (await read(OWNER, acme.tenant, str(fine))).answers == ["Four."]


async def test_a_lost_one_is_only_logged_and_never_quoted(
    acme: Any, admitted: Any, db_pool: Pool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    await turn_on(OWNER, acme.tenant, days=7)
    monkeypatch.setattr(payload_log, "MOST_WAITING", 1)
    secret = kept(("user", "the secret"), answer="the secret")
    unknown = UUID(int=7)  # no such request: the database refuses
    payload_log.note(db_pool, unknown, acme.tenant.pk, secret)
    payload_log.note(db_pool, await admitted(acme), acme.tenant.pk, secret)
    await payload_log.flush(db_pool)
    assert "2 payloads are lost" in caplog.text
    assert "the secret" not in caplog.text
    assert await count() == 0


async def test_turning_off_waits_for_what_is_being_written(acme: Any, admitted: Any, db_pool: Pool, dsn: str) -> None:
    """Whoever began to write before is deleted as well; nothing is left over."""
    await turn_on(OWNER, acme.tenant, days=7)
    request_id = await admitted(acme)
    async with await psycopg.AsyncConnection.connect(dsn) as writer:
        columns = payload_log._columns([(request_id, acme.tenant.pk, kept())])
        await writer.execute(payload_log._WRITE, columns)
        ending = asyncio.create_task(turn_off(OWNER, acme.tenant))
        await asyncio.sleep(0.3)
        assert not ending.done()
        await writer.commit()
    assert await ending == 1
    assert await count() == 0


def test_commands(acme: Any, capsys: pytest.CaptureFixture[str]) -> None:
    call_command("store_payloads", "acme", "--days", "3")
    assert "stored for 3 days; operators may not read them" in capsys.readouterr().out
    assert PayloadStoring.objects.get(tenant=acme.tenant).days == 3
    call_command("store_payloads", "acme", "--off")
    assert "nothing is stored; 0 requests" in capsys.readouterr().out
    for wrong in (["acme"], ["acme", "--days", "3", "--off"], ["acme", "--days", "31"], ["nobody", "--days", "3"]):
        with pytest.raises(CommandError):
            call_command("store_payloads", *wrong)
