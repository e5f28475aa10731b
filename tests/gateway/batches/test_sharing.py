"""Several batches in one runner: none waits for another's long lines, and what is cut off waits for nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gateway.batches import runner, work
from gateway.batches.places import Places
from tenants import batches
from tenants.models import Batch
from tests.gateway.batches.conftest import BY_TEST, Lines, again, content, line, new_batch, soon_over
from tests.gateway.batches.test_running import run, settled, until
from tests.gateway.house import Actor, House
from tests.gateway.stub_worker import SILENT


def silent(house: House, actor: Actor, count: int) -> Batch:
    return new_batch(actor, [line(f"silent {n}", model=house.base.name, seed=SILENT) for n in range(count)])


async def test_a_batch_of_long_lines_leaves_others_their_turn(
    house: House, acme: Actor, stranger: Actor, lines: Lines
) -> None:
    long = silent(house, acme, 12)
    running = asyncio.create_task(run())
    await until(lambda: house.running(acme) == 8)
    quick = new_batch(stranger, lines(10))
    await until(lambda: again(quick).status == "completed", 20)
    assert again(quick).completed == 10
    assert house.running(acme) == 8
    batches.cancel(BY_TEST, acme.tenant, long.pk)
    await running
    assert house.running(acme) == 0


async def test_when_its_time_is_over_it_ends_between_two_lines(
    house: House, acme: Actor, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "LOOK_SECONDS", 0.1)
    batch = new_batch(acme, lines(300, max_tokens=5))
    await runner.run(0.5, lambda: False)
    batch = again(batch)
    assert (batch.status, batch.runner, batch.failed) == ("in_progress", "", 0)
    assert batch.completed < 300
    assert {row.kind for row in house.ledger(acme)} <= {"settle"}
    assert house.running(acme) == 0


async def test_when_its_time_is_over_nobody_waits_for_a_long_line(
    house: House, acme: Actor, stranger: Actor, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "LOOK_SECONDS", 0.1)
    monkeypatch.setattr(runner, "GRACE_SECONDS", 1.0)
    long = silent(house, acme, 1)
    running = asyncio.create_task(runner.run(1.0, lambda: False))
    await until(lambda: house.running(acme) == 1)
    await asyncio.sleep(1.2)
    quick = new_batch(stranger, lines(10))
    await until(lambda: again(quick).status == "completed", 20)
    assert house.running(acme) == 1
    batches.cancel(BY_TEST, acme.tenant, long.pk)
    await running


async def test_what_is_cut_off_waits_for_no_other_batch(
    house: House, acme: Actor, stranger: Actor, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "MOST_BATCHES", 1)
    long = silent(house, acme, 1)
    running = asyncio.create_task(run())
    await until(lambda: house.running(acme) == 1)
    cancelled = [new_batch(actor, lines(2)) for actor in (acme, stranger)]
    expired = [new_batch(actor, lines(2)) for actor in (acme, stranger)]
    for batch, actor in zip(cancelled, (acme, stranger), strict=True):
        batches.cancel(BY_TEST, actor.tenant, batch.pk)
    for batch in expired:
        soon_over(batch, -1)
    await until(lambda: all(again(batch).status not in Batch.UNFINISHED for batch in (*cancelled, *expired)))
    assert [again(batch).status for batch in (*cancelled, *expired)] == ["cancelled"] * 2 + ["expired"] * 2
    assert again(long).status == "in_progress"
    assert house.ledger(stranger) == []
    batches.cancel(BY_TEST, acme.tenant, long.pk)
    await running


async def test_what_is_cut_off_as_its_lines_begin_runs_none(
    house: House, acme: Actor, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = work.Work._input

    async def cut(self: work.Work) -> Any:
        path = await find(self)
        if self.batch.status == "in_progress":
            soon_over(self.batch, -1)
            self.cut(Batch.Status.EXPIRED)
        return path

    monkeypatch.setattr(work.Work, "_input", cut)
    batch = new_batch(acme, lines(5))
    await run()
    batch = again(batch)
    assert (batch.status, batch.completed, batch.failed) == ("expired", 0, 5)
    assert settled(house, acme) == []


async def test_a_line_whose_batch_rests_by_the_time_it_gets_a_place_does_not_run(
    house: House, acme: Actor, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Places.one

    @asynccontextmanager
    async def late(self: Places, holder: work.Work) -> AsyncIterator[None]:
        async with one(self, holder):
            holder.rest(60.0)
            yield

    monkeypatch.setattr(Places, "one", late)
    batch = new_batch(acme, lines(5))
    await run()
    batch = again(batch)
    assert (batch.status, batch.completed, batch.runner) == ("in_progress", 0, "")
    assert house.ledger(acme) == []


async def test_a_line_that_can_be_read_no_more_fails_alone(
    house: House, acme: Actor, lines: Lines, settings: Any
) -> None:
    """The operator has lowered the limit of bodies since it was checked."""
    big = line("big", model=house.base.name, messages=[{"role": "user", "content": "x" * 5000}])
    batch = new_batch(acme, [*lines(1), big])
    for cut in (False, True):
        Batch.objects.unscoped().filter(pk=batch.pk).update(
            status="in_progress", in_progress_at=batch.created_at, total=2
        )
        if cut:
            soon_over(batch, -1)
        settings.MAX_BODY_BYTES = 2000
        await run()
        settings.MAX_BODY_BYTES = 1 << 22
        found = again(batch)
        assert (found.status, found.completed, found.failed) == ("expired" if cut else "completed", 1 - cut, 1 + cut)
        errors = content(acme, found.error_file_id)
        assert errors[-1]["custom_id"] == "line 2 of the input"
        batch = new_batch(acme, [*lines(1), big])
