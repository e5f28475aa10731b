"""Batches from input to output; the runner in this process, as the Celery task runs it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import jwt
import pytest
from django.utils import timezone

from gateway.batches import runner, work
from gateway.batches.line_run import PRIORITY, LineTransport
from gateway.chat import Run
from tenants import batch_work, batches, reconciliation
from tenants.access import Access, ServedModel
from tenants.db import Pool
from tenants.grants import signed_now
from tenants.models import Adapter, AdapterVersion, ApiKey, Batch, LedgerEntry, Tenant
from tenants.versions import version_of
from tests.gateway.batches.conftest import BY_TEST, Lines, again, content, line, new_batch, soon_over
from tests.gateway.house import Actor, House
from tests.gateway.stub_worker import AT_FAULT, BREAK_OFF, SILENT

Condition = Callable[[], Any]


async def run(seconds: float = 60.0) -> int:
    async with asyncio.timeout(seconds):
        return await runner.run(seconds, lambda: False)


async def until(condition: Condition, seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"still not so after {seconds} s"
        await asyncio.sleep(0.05)


def settled(house: House, actor: Actor) -> list[Any]:
    return [row for row in house.ledger(actor) if row.kind == "settle"]


async def test_every_line_is_answered_and_charged_once(house: House, acme: Actor, lines: Lines) -> None:
    batch = new_batch(acme, lines(20))
    assert await run() == 1
    batch = again(batch)
    assert (batch.status, batch.total, batch.completed, batch.failed) == ("completed", 20, 20, 0)
    assert None not in (batch.in_progress_at, batch.finalizing_at, batch.completed_at)
    answers = content(acme, batch.output_file_id)
    assert batch.error_file_id is None
    assert [int(answer["custom_id"]) for answer in answers] == list(range(20))
    assert {(answer["response"]["status_code"], answer["error"]) for answer in answers} == {(200, None)}
    assert answers[0]["response"]["body"]["choices"][0]["message"]["content"] == " 0 1 2"
    rows = house.ledger(acme)
    assert {answer["response"]["request_id"] for answer in answers} == {str(row.request_id) for row in rows}
    assert {(row.kind, row.outcome, row.completion_tokens) for row in rows} == {("settle", "completed", 3)}
    assert (batch.completion_tokens, batch.prompt_tokens) == (60, sum(row.prompt_tokens for row in rows))
    assert house.running(acme) == 0
    assert not batch.results.exists()
    assert reconciliation.reconcile().ok


async def test_text_completions_and_every_field_of_a_live_request(house: House, acme: Actor) -> None:
    url = "/v1/completions"
    body = {"messages": None, "prompt": "Hi", "n": 2, "stop": ["x"], "temperature": 0.5}
    wanted = line("a", url=url, model=house.base.name, **body)
    del wanted["body"]["messages"]
    batch = new_batch(acme, [wanted], url)
    await run()
    (answer,) = content(acme, again(batch).output_file_id)
    assert answer["response"]["body"]["object"] == "text_completion"
    assert len(answer["response"]["body"]["choices"]) == 2


async def test_lines_may_name_one_version(house: House, acme: Actor, monkeypatch: pytest.MonkeyPatch) -> None:
    house.adapter(acme, "pirate", "a" * 64)
    adapter = Adapter.objects.get(tenant=acme.tenant, name="pirate")
    three = AdapterVersion.objects.create(adapter=adapter, number=3, state="ready", digest="c" * 64)
    asked = []

    async def seen(pool: Pool, access: Access, name: str) -> ServedModel:
        asked.append(name)
        return await version_of(pool, access, name)

    monkeypatch.setattr(work, "version_of", seen)
    names = ("acme/pirate@3", "acme/pirate", "pirate@3", "acme/pirate@3", house.base.name)
    batch = new_batch(acme, [line(str(number), model=name) for number, name in enumerate(names)])
    await run()
    batch = again(batch)
    assert (batch.status, batch.completed, batch.failed) == ("completed", 5, 0), batch.errors
    rows = LedgerEntry.objects.filter(tenant=acme.tenant, adapter_version=three)
    assert rows.count() == 3
    answers = content(acme, batch.output_file_id)
    assert [answer["response"]["body"]["model"] for answer in answers][:3] == [
        "acme/pirate@3",
        "acme/pirate",
        "acme/pirate@3",
    ]
    assert asked == ["acme/pirate@3", "pirate@3"], "once for each name"


async def test_a_version_that_the_key_may_not_use_is_told_by_line(house: House, acme: Actor, stranger: Actor) -> None:
    theirs = house.adapter(stranger, "sailor")
    for name in ("pirate", "secret"):
        house.adapter(acme, name)
    adapter = Adapter.objects.get(tenant=acme.tenant, name="pirate")
    AdapterVersion.objects.create(adapter=adapter, number=2, state="pending", digest="b" * 64)
    ApiKey.objects.filter(tenant=acme.tenant).update(only_models=[], only_adapters=[adapter.pk])
    names = ("pirate@1", "pirate@2", "pirate@7", "secret@1", f"{theirs}@1", "pirate@7", "pirate@x")
    batch = new_batch(acme, [line(str(number), model=name) for number, name in enumerate(names)])
    await run()
    batch = again(batch)
    assert batch.status == "failed"
    wrong = {(error["line"], error["code"], error["param"]) for error in batch.errors}
    assert wrong == {(number, "model_not_found", "body.model") for number in range(2, 8)}
    assert house.ledger(acme) == []


async def test_lines_run_behind_live_requests(
    house: House, acme: Actor, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    grants = []

    class Seen(LineTransport):
        async def send(self, run: Run, chunks: Any) -> None:
            assert run.admitted is not None
            grants.append(jwt.decode(signed_now(run.admitted.grant), options={"verify_signature": False}))
            await super().send(run, chunks)

    monkeypatch.setattr(work, "LineTransport", Seen)
    new_batch(acme, lines(1))
    await run()
    assert [grant["prio"] for grant in grants] == [PRIORITY]
    assert PRIORITY > 0


async def test_what_a_worker_refuses_is_in_the_error_file_and_costs_nothing(
    house: House, acme: Actor, lines: Lines
) -> None:
    wrong = line("wrong", model=house.base.name, seed=AT_FAULT, max_tokens=5)
    batch = new_batch(acme, [*lines(2), wrong])
    await run()
    batch = again(batch)
    assert (batch.status, batch.completed, batch.failed) == ("completed", 2, 1)
    (error,) = content(acme, batch.error_file_id)
    assert (error["custom_id"], error["response"]["status_code"], error["error"]) == ("wrong", 400, None)
    assert error["response"]["body"]["error"]["param"] == "stop"
    assert len(settled(house, acme)) == 2
    assert batch.completion_tokens == 6


async def test_a_line_that_loses_its_worker_each_time_fails_at_last(
    house: House, acme: Actor, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work, "MOST_TRIES", 2)
    batch = new_batch(acme, [line("lost", model=house.base.name, seed=BREAK_OFF, max_tokens=5), *lines(2)])
    await run()
    batch = again(batch)
    (error,) = content(acme, batch.error_file_id)
    assert (error["custom_id"], error["response"]["body"]["error"]["code"]) == ("lost", "worker_lost")
    assert batch.completed == 2
    assert len(settled(house, acme)) == 2
    assert [row.cost for row in house.ledger(acme) if row.kind == "void"] == [0, 0]


async def test_without_a_worker_lines_wait(bare_house: House, acme: Actor, stub: Any) -> None:
    batch = new_batch(acme, [line("a", model=bare_house.base.name)])
    running = asyncio.create_task(run())
    await until(lambda: again(batch).status == "in_progress")
    await asyncio.sleep(1.5)
    assert again(batch).failed == 0
    bare_house.worker(stub.url, "stub")
    await running
    if again(batch).resume_at is not None:  # it was put down
        Batch.objects.unscoped().update(resume_at=None)
        await run()
    assert again(batch).completed == 1


# Limits ---------------------------------------------------------------------------------------------------------------


async def test_a_rate_limit_makes_it_wait_and_leaves_half_to_others(bare_house: House, stub: Any) -> None:
    bare_house.worker(stub.url, "stub")
    busy = bare_house.actor("busy", requests_per_minute=600)
    batch = new_batch(busy, [line(str(n), model=bare_house.base.name, max_tokens=1) for n in range(330)])
    begun = time.monotonic()
    await run()
    batch = again(batch)
    assert (batch.completed, batch.failed) == (330, 0)
    # 300 and what refilled meanwhile at once, the rest as half of the bucket refills
    assert time.monotonic() - begun > 2
    account = busy.tenant.accounts.get(subject="tenant")
    assert account.requests_level >= 290 * 60_000_000


async def test_of_the_places_of_a_tenant_it_takes_half(bare_house: House, stub: Any) -> None:
    bare_house.worker(stub.url, "stub")
    busy = bare_house.actor("busy", max_concurrent=4)
    batch = new_batch(busy, [line(str(n), model=bare_house.base.name, max_tokens=10) for n in range(20)])
    running = asyncio.create_task(run())
    most = 0
    while not running.done():
        most = max(most, bare_house.running(busy))
        await asyncio.sleep(0.02)
    await running
    assert most == 2
    assert again(batch).completed == 20


async def test_a_quota_that_is_used_up_puts_it_down_until_there_is_more(bare_house: House, stub: Any) -> None:
    bare_house.worker(stub.url, "stub")
    poor = bare_house.actor("poor", tokens_per_day=60)
    batch = new_batch(poor, [line(str(n), model=bare_house.base.name) for n in range(10)])
    await run()
    batch = again(batch)
    assert (batch.status, batch.failed, batch.runner) == ("in_progress", 0, "")
    assert 0 < batch.completed < 10
    assert batch.resume_at is not None
    assert batch.resume_at > timezone.now()
    assert not batch_work.waiting()
    Tenant.objects.filter(pk=poor.tenant.pk).update(tokens_per_day=100_000)
    Batch.objects.unscoped().update(resume_at=timezone.now())
    await run()
    assert again(batch).completed == 10
    assert len(settled(bare_house, poor)) == 10


async def test_what_no_waiting_mends_is_an_error(bare_house: House, stub: Any) -> None:
    bare_house.worker(stub.url, "stub")
    small = bare_house.actor("small", tokens_per_minute=30)
    batch = new_batch(small, [line("big", model=bare_house.base.name, max_tokens=100)])
    await run()
    (error,) = content(small, again(batch).error_file_id)
    assert error["response"]["body"]["error"]["code"] == "rate_limit_exceeded"


async def test_a_suspended_account_waits_and_a_revoked_key_ends(house: House, acme: Actor, lines: Lines) -> None:
    batch = new_batch(acme, lines(3))
    Tenant.objects.filter(pk=acme.tenant.pk).update(state="suspended")
    running = asyncio.create_task(run())
    await until(lambda: again(batch).status == "in_progress")
    await asyncio.sleep(1.0)
    assert (again(batch).completed, again(batch).failed) == (0, 0)
    Tenant.objects.filter(pk=acme.tenant.pk).update(state="active")
    ApiKey.objects.filter(tenant=acme.tenant).update(revoked_at=timezone.now())
    await running
    if again(batch).resume_at is not None:
        Batch.objects.unscoped().update(resume_at=None)
        await run()
    batch = again(batch)
    assert (batch.status, batch.failed) == ("completed", 3)
    codes = {error["response"]["body"]["error"]["code"] for error in content(acme, batch.error_file_id)}
    assert codes == {"invalid_api_key"}


# Cancelled, expired, interrupted --------------------------------------------------------------------------------------


async def test_cancelling_stops_within_seconds_and_delivers_what_is_done(
    house: House, acme: Actor, lines: Lines
) -> None:
    silent = [line(f"silent {n}", model=house.base.name, seed=SILENT) for n in range(8)]
    batch = new_batch(acme, [*lines(4), *silent])
    running = asyncio.create_task(run())
    await until(lambda: again(batch).completed == 4)
    assert house.running(acme) > 0
    batches.cancel(BY_TEST, acme.tenant, batch.pk)
    await until(lambda: again(batch).status == "cancelled", 5)
    await running
    batch = again(batch)
    assert len(content(acme, batch.output_file_id)) == 4
    assert batch.error_file_id is None
    assert house.running(acme) == 0
    assert len(settled(house, acme)) == 4
    assert reconciliation.reconcile().ok


async def test_a_batch_that_nobody_works_on_is_cancelled_too(house: House, acme: Actor, lines: Lines) -> None:
    batch = new_batch(acme, lines(3))
    batches.cancel(BY_TEST, acme.tenant, batch.pk)
    await run()
    batch = again(batch)
    assert (batch.status, batch.output_file_id, house.ledger(acme)) == ("cancelled", None, [])


async def test_what_is_not_done_in_time_is_in_the_error_file(house: House, acme: Actor, lines: Lines) -> None:
    silent = [line(f"silent {n}", model=house.base.name, seed=SILENT) for n in range(9)]
    batch = new_batch(acme, [*lines(4), *silent])
    soon_over(batch, 3)
    await run()
    batch = again(batch)
    assert (batch.status, batch.completed, batch.failed, batch.total) == ("expired", 4, 9, 13)
    errors = content(acme, batch.error_file_id)
    assert {error["custom_id"] for error in errors} == {each["custom_id"] for each in silent}
    assert {(error["response"], error["error"]["code"]) for error in errors} == {(None, "batch_expired")}
    assert len(content(acme, batch.output_file_id)) == 4
    assert len(settled(house, acme)) == 4
