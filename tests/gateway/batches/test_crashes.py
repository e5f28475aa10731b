"""The real Celery process for batches, killed in the middle; the broker gone; two runners on one batch."""

from __future__ import annotations

import asyncio
import signal
import time
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from django.db import connection
from django.utils import timezone
from psycopg_pool import AsyncConnectionPool

from gateway import chat
from gateway.batches import outputs, runner
from tenants import batch_work, reconciliation, settlement
from tenants.models import Batch, BatchResult
from tests.gateway.batches.conftest import Lines, again, content, ended, line, new_batch, soon_over, started_celery
from tests.gateway.batches.test_running import until
from tests.gateway.house import Actor, House, wait_for


def void_what_is_left(house: House, actor: Actor) -> None:
    """As the reaper does once the leases have run out."""
    with connection.cursor() as cursor:
        cursor.execute("UPDATE tenants_inferencerequest SET lease_expires_at = now() WHERE state = 'running'")
        cursor.execute("CALL tenants_reap(NULL, 1000, NULL)")
    assert house.running(actor) == 0


def each_line_once(house: House, actor: Actor, batch: Batch, count: int) -> None:
    answers = content(actor, batch.output_file_id)
    assert sorted(int(answer["custom_id"]) for answer in answers) == list(range(count))
    paid = [row for row in house.ledger(actor) if row.kind == "settle"]
    assert {answer["response"]["request_id"] for answer in answers} == {str(row.request_id) for row in paid}
    assert len(paid) == count
    assert sum(row.completion_tokens for row in paid) == batch.completion_tokens
    assert {row.cost for row in house.ledger(actor) if row.kind == "void"} <= {0}
    assert reconciliation.reconcile().ok


@pytest.mark.slow
def test_killed_again_and_again_every_line_is_answered_and_charged_once(
    house: House, acme: Actor, lines: Lines, tmp_path: Path
) -> None:
    count = 120
    batch = new_batch(acme, lines(count, max_tokens=8))
    for done in (25, 55, 85):
        with started_celery(tmp_path) as process:
            wait_for(lambda done=done: again(batch).completed > done, 40)
            process.send_signal(signal.SIGKILL)
            process.wait()
            left = house.running(acme)
        assert left > 0, "it was killed between two lines"
        Batch.objects.unscoped().update(held_until=timezone.now())  # instead of waiting for it
        connection.close()
    with started_celery(tmp_path):
        batch = ended(batch)
    void_what_is_left(house, acme)
    assert (batch.status, batch.completed, batch.failed) == ("completed", count, 0)
    each_line_once(house, acme, batch, count)


@pytest.mark.slow
def test_told_to_stop_it_puts_everything_down_at_once(house: House, acme: Actor, lines: Lines, tmp_path: Path) -> None:
    batch = new_batch(acme, lines(200, max_tokens=8))
    with started_celery(tmp_path) as process:
        wait_for(lambda: again(batch).completed > 10, 40)
        process.terminate()
        assert process.wait(10) == 0
    assert house.running(acme) == 0
    assert (again(batch).status, again(batch).runner, again(batch).held_until) == ("in_progress", "", None)
    assert {row.kind for row in house.ledger(acme)} <= {"settle", "void"}


async def test_what_was_being_admitted_as_it_stopped_is_given_back(
    house: House, acme: Actor, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database answers an admission after everybody who asked for it has gone."""
    new_batch(acme, lines(20))
    asked, admit = asyncio.Event(), chat.admit

    async def slowly(*arguments: Any, **named: Any) -> Any:
        asked.set()
        await asyncio.sleep(2.0)  # longer than until the runner looks whether it has to stop
        return await admit(*arguments, **named)

    monkeypatch.setattr(chat, "admit", slowly)
    await runner.run(30, asked.is_set)
    assert house.running(acme) == 0
    assert {row.kind for row in house.ledger(acme)} == {"void"}


async def test_what_failed_while_it_was_finished_is_finished_again(
    house: House, acme: Actor, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = new_batch(acme, lines(5))
    taken = batch_work.claim("dead", [])
    assert taken is not None
    batch_work.begin("dead", batch, 5)
    Batch.objects.unscoped().update(runner="", held_until=None)
    calls = []

    def die(*arguments: object, **named: object) -> bool:
        calls.append(arguments)
        raise RuntimeError("the end of it")

    with monkeypatch.context() as patch:
        patch.setattr(batch_work, "finish", die)
        await runner.run(30, lambda: False)
    assert (again(batch).status, len(calls)) == ("finalizing", 1)
    Batch.objects.unscoped().update(resume_at=None)
    await runner.run(30, lambda: False)
    assert again(batch).status == "completed"
    each_line_once(house, acme, again(batch), 5)


async def test_one_whose_lines_are_all_answered_is_completed_at_whatever_hour(
    house: House, acme: Actor, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = new_batch(acme, lines(3))

    def die(*arguments: object, **named: object) -> bool:
        raise RuntimeError("the end of it")

    with monkeypatch.context() as patch:
        patch.setattr(batch_work, "finish", die)
        await runner.run(30, lambda: False)
    assert again(batch).status == "finalizing"
    soon_over(batch, -1)
    assert not batch_work.waiting(), "it rests after an error, or would fail again and again without end"
    Batch.objects.unscoped().update(resume_at=None)
    await runner.run(30, lambda: False)
    batch = again(batch)
    assert (batch.status, batch.completed, batch.failed, batch.error_file_id) == ("completed", 3, 0, None)


async def test_two_runners_that_both_believe_they_hold_it_charge_each_line_once(
    house: House, acme: Actor, lines: Lines
) -> None:
    batch = new_batch(acme, lines(30))
    first = asyncio.create_task(runner.run(60, lambda: False))
    await until(lambda: again(batch).completed > 5)
    Batch.objects.unscoped().update(held_until=timezone.now())  # the first one has said nothing for too long
    await asyncio.gather(first, runner.run(60, lambda: False))
    assert again(batch).status == "completed"
    each_line_once(house, acme, again(batch), 30)


async def test_a_batch_stays_with_whoever_takes_long_to_write_its_files(
    house: House, acme: Actor, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_work, "HOLD", timedelta(seconds=2))
    write, written = outputs.answers, []

    def slowly(batch: Batch) -> Path | None:
        written.append(batch.pk)
        time.sleep(4)
        return write(batch)

    monkeypatch.setattr(outputs, "answers", slowly)
    batch = new_batch(acme, lines(3))
    first = asyncio.create_task(runner.run(30, lambda: False))
    await until(lambda: written)
    for _ in range(6):
        await asyncio.sleep(2.0)  # longer than until the runner looks whether it has to stop
        assert batch_work.claim("other", []) is None
    await first
    assert again(batch).status == "completed"
    assert written == [batch.pk]
    each_line_once(house, acme, again(batch), 3)


async def test_a_lease_that_ran_out_records_nothing(house: House, acme: Actor, db_pool: AsyncConnectionPool) -> None:
    """Its request is void already: an answer that nobody pays for is not kept."""
    batch = new_batch(acme, [line("a", model=house.base.name)])
    Batch.objects.unscoped().update(status="in_progress")
    call = "CALL tenants_finish_line(%s, 1, true, '{}', %s, 5, 0, 3, 'stop', NULL, NULL, NULL, NULL)"
    async with db_pool.connection() as asking:
        row = await (await asking.execute(call, (batch.pk, uuid4()))).fetchone()
    assert row is not None
    assert row[0] == "lost"
    assert not BatchResult.objects.unscoped().exists()
    assert await settlement.reap(db_pool) == 0


@pytest.mark.slow
def test_without_the_broker_it_goes_on_and_what_came_meanwhile_is_done_after(
    house: House, acme: Actor, lines: Lines, tmp_path: Path
) -> None:
    from gateway.embedded import pytest_plugin
    from gateway.embedded.valkey import Valkey

    (valkey,) = [server for server in pytest_plugin._servers if isinstance(server, Valkey)]
    first = new_batch(acme, lines(60, max_tokens=8))
    with started_celery(tmp_path):
        wait_for(lambda: again(first).completed > 3, 40)
        valkey.stop()
        try:
            second = new_batch(acme, lines(3))
            assert ended(first).completed == 60
        finally:
            valkey.start()
        assert ended(second).completed == 3
    each_line_once_of_both = content(acme, again(first).output_file_id) + content(acme, again(second).output_file_id)
    assert len(each_line_once_of_both) == 63
    assert len([row for row in house.ledger(acme) if row.kind == "settle"]) == 63
