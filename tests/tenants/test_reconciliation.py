"""reconcile finds every kind of mistake, and roll-ups can be made again from the ledger."""

from __future__ import annotations

import asyncio
import io
import json
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from django.core.management import CommandError, call_command
from django.db import connection, transaction

from tenants import rollups, tasks
from tenants.actors import of_command
from tenants.admission import admit
from tenants.db import open_pool
from tenants.models import InferenceRequest, LedgerEntry, UsageHour, UsageMark
from tenants.reconciliation import reconcile, repair
from tenants.settlement import settle

# An hour of its own, not that of the run: the three times of `books` have to lie in one day. Past midnight an
# account would begin another day and, with the next request of the time before, go back and forget it.
YESTERDAY = (datetime.now(UTC) - timedelta(days=1)).replace(hour=10, minute=20, second=0, microsecond=0)

pytestmark = pytest.mark.usefixtures("grant_keys")


@pytest.fixture
def books(world: Any, new_id: Any) -> Any:
    """Two tenants, one with limits of its key: nine requests settled at three times, one running."""
    world.price(3_000_000, 1_000_000, 5_000_000)
    actors = [world.actor("acme", key_limits={"tokens_per_day": 10_000}), world.actor("globex")]

    async def use() -> list[UUID]:
        ids = []
        async with open_pool(min_size=1, max_size=1) as pool:
            for number in range(10):
                ids.append(new_id())
                await admit(
                    pool,
                    request_id=ids[-1],
                    access=actors[number % 2].access(),
                    model=world.served(),
                    prompt_tokens=10 + number,
                    max_tokens=20,
                    now=YESTERDAY + timedelta(minutes=50 * (number % 3)) if number < 9 else None,
                )
                if number < 9:
                    await settle(
                        pool,
                        request_id=ids[-1],
                        prompt_tokens=10 + number,
                        cached_tokens=number,
                        completion_tokens=number,
                        outcome="completed" if number else "failed",
                        finish_reason=None,
                    )
        return ids

    world.ids = asyncio.run(use())
    world.actors = actors
    return world


def tampered(sql: str, *values: Any) -> None:
    """What only somebody with all rights over the database can do."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = replica")
        cursor.execute(sql, values)
        assert cursor.rowcount > 0


def test_all_is_well(books: Any) -> None:
    found = reconcile()
    assert found.ok, found.findings
    assert (found.requests, found.entries, found.running) == (10, 9, 1)
    assert found.prompt_tokens == sum(range(10, 19))
    entries = LedgerEntry.objects.unscoped()
    assert found.cost == sum(entry.cost for entry in entries) == sum(10 * 3 + n + n * 5 for n in range(9))
    only = reconcile(books.actors[0].tenant)
    assert (only.ok, only.requests) == (True, 5)


@pytest.mark.parametrize(
    ("check", "sql"),
    [
        (
            "an account differs",
            "UPDATE tenants_account SET settled_cost = settled_cost + 1 WHERE subject LIKE 'key:%%'",
        ),
        ("an account differs", "UPDATE tenants_account SET held_tokens = 0 WHERE held_tokens > 0"),
        ("an account differs", "UPDATE tenants_account SET month_cost = 0 WHERE month_cost > 0"),
        ("an account differs", "DELETE FROM tenants_ledgerentry WHERE completion_tokens = 3"),
        ("no account", "DELETE FROM tenants_account"),
        ("has no ledger entry", "DELETE FROM tenants_ledgerentry WHERE completion_tokens = 3"),
        ("disagrees", "UPDATE tenants_ledgerentry SET completion_tokens = 21 WHERE completion_tokens = 3"),
        ("disagrees", "UPDATE tenants_inferencerequest SET state = 'running' WHERE prompt_tokens = 12"),
        ("disagrees", "UPDATE tenants_ledgerentry SET price_id = NULL WHERE completion_tokens = 3"),
        ("not what its price says", "UPDATE tenants_ledgerentry SET cost = cost - 1 WHERE completion_tokens = 3"),
        (
            "its lease ran out",
            "UPDATE tenants_inferencerequest SET lease_expires_at = now() - interval '2 min' WHERE state = 'running'",
        ),
        ("a roll-up differs", "UPDATE tenants_usagehour SET cost = cost + 1"),
        ("a roll-up differs", "DELETE FROM tenants_usagehour WHERE completion_tokens > 5"),
    ],
)
def test_every_mistake_is_found(check: str, sql: str, books: Any) -> None:
    rollups.rebuild()
    assert reconcile().ok
    tampered(sql)
    found = reconcile()
    assert not found.ok
    assert any(check in finding.check for finding in found.findings), found.findings
    out = io.StringIO()
    with pytest.raises(CommandError, match="do not add up"):
        call_command("reconcile", "--json", stdout=out)
    assert json.loads(out.getvalue())["ok"] is False
    assert tasks.reconcile() is False


def test_accounts_can_be_made_again(books: Any) -> None:
    tampered("UPDATE tenants_account SET settled_cost = 1, month_tokens = 2, held_cost = 3")
    assert not reconcile().ok
    repair(of_command(), books.actors[0].tenant)
    assert {finding.tenant for finding in reconcile().findings} == {"globex"}
    call_command("reconcile", "--repair", stdout=io.StringIO())


def rolled() -> list[tuple[Any, ...]]:
    fields = ("hour", "tenant", "key", "base_model", "requests", "not_completed", "prompt_tokens", "cost")
    return sorted(UsageHour.objects.unscoped().values_list(*fields))


def test_rollups_follow_the_ledger(books: Any) -> None:
    hours = {entry.admitted_at.replace(minute=0, second=0, microsecond=0) for entry in LedgerEntry.objects.unscoped()}
    assert tasks.roll_up() == len(hours) > 1
    first = rolled()
    assert sum(row[4] for row in first) == 9
    assert sum(row[5] for row in first) == 1
    assert {row[0] for row in first} == hours
    tasks.roll_up()
    assert rolled() == first, "again changes nothing"
    tampered("DELETE FROM tenants_usagehour")
    assert rollups.rebuild() == len(first)
    assert rolled() == first
    tampered("UPDATE tenants_usagehour SET requests = 7, hour = hour - interval '1 year'")
    rollups.rebuild()
    assert rolled() == first, "also what no entry stands behind is gone"
    call_command("rollup", "--since", YESTERDAY.date().isoformat(), stdout=io.StringIO())
    assert rolled() == first
    assert reconcile().ok


def test_late_entries_reach_their_hour(books: Any) -> None:
    rollups.catch_up()
    before = sum(row[4] for row in rolled())

    async def end() -> None:
        async with open_pool(min_size=1, max_size=1) as pool:
            await settle(
                pool,
                request_id=books.ids[-1],
                prompt_tokens=1,
                cached_tokens=0,
                completion_tokens=1,
                outcome="completed",
                finish_reason=None,
            )

    asyncio.run(end())
    assert reconcile().ok, "an hour that is not rolled up yet is no mistake"
    rollups.catch_up()
    assert sum(row[4] for row in rolled()) == before + 1
    assert not InferenceRequest.objects.unscoped().filter(state="running").exists()


def test_a_long_catching_up_comes_in_steps(books: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    earlier = "created_at = created_at - interval '5 days', admitted_at = admitted_at - interval '5 days'"
    for tokens in (2, 5):
        tampered(f"UPDATE tenants_ledgerentry SET {earlier} WHERE completion_tokens <= %s", tokens)
    monkeypatch.setattr(rollups, "MOST_SECONDS", -1)
    covered, counted = [], []
    for _ in range(14):
        rollups.catch_up()
        covered.append(UsageMark.objects.get(pk=1).covered_until)
        counted.append(sum(row[4] for row in rolled()))
    assert covered == sorted(covered)
    assert datetime.now(UTC) - covered[-1] < rollups.LATE
    assert (counted[0], 6 in counted, counted[-1]) == (3, True, 9), "first the oldest"
    done = rolled()
    rollups.rebuild()
    assert rolled() == done
