"""What was used: by time and by what, equal to the ledger at any moment, as JSON and as a spreadsheet's rows."""

from __future__ import annotations

import asyncio
import csv
import json
import random
from datetime import UTC, datetime, timedelta
from io import StringIO
from typing import Any

import pytest
from django.db import connection
from django.db.models import Count, Sum
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from tenants import rollups, usage
from tenants.models import ApiKey, LedgerEntry, Tenant, UsageMark
from tenants.usage_csv import cell
from tests.gateway.api import ledger
from tests.gateway.api.conftest import Caller, Make, _member
from tests.gateway.api.test_management import error

NOON = datetime(2030, 3, 10, 12, tzinfo=UTC)
DAY = "from=2030-03-10T00:00:00Z&to=2030-03-11T00:00:00Z"


@pytest.fixture
def key(tenant: Tenant) -> ApiKey:
    return ApiKey.issue(tenant)[0]


def rows(caller: Caller, query: str) -> list[dict[str, Any]]:
    answer = caller.get(f"/api/usage?{query}")
    assert answer.status_code == 200, answer.content
    return answer.json()["data"]


def content(answer: Any) -> str:
    """Of a file, which is sent in pieces."""

    async def read() -> bytes:
        return b"".join([chunk async for chunk in answer.streaming_content])

    return asyncio.run(read()).decode()


def sums(row: dict[str, Any]) -> tuple[int, ...]:
    return tuple(row[name] for name in usage.SUMS)


def test_by_day_and_model_unless_asked_otherwise(caller: Make, key: ApiKey, tenant: Tenant) -> None:
    version = ledger.adapter(tenant, "pirate")
    ledger.ended(key, NOON)
    ledger.ended(key, NOON + timedelta(hours=1), outcome="failed")
    ledger.ended(key, NOON, version=version)
    found = rows(caller(), DAY)
    assert [(r["day"], r["at"], r["model"], r["key"]) for r in found] == [
        ("2030-03-10", "2030-03-10T00:00:00Z", "acme/pirate", None),
        ("2030-03-10", "2030-03-10T00:00:00Z", "tiny", None),
    ]
    assert [sums(row) for row in found] == [(1, 0, 10, 4, 5, 7), (2, 1, 20, 8, 10, 14)]


def test_by_everything_and_every_bucket(caller: Make, tenant: Tenant, key: ApiKey) -> None:
    member = _member(tenant, "developer")
    theirs, _ = ApiKey.issue(tenant, member=member)
    version = ledger.adapter(tenant, "pirate")
    ledger.ended(theirs, NOON, version=version)
    ledger.ended(key, NOON + timedelta(hours=1))
    owner = caller()
    [last, first] = rows(owner, f"{DAY}&bucket=hour&by=key&by=member&by=adapter&by=base_model")
    assert (first["at"], first["key"], first["member"]) == (
        "2030-03-10T12:00:00Z",
        theirs.public_id,
        str(member.public_id),
    )
    assert (first["adapter"], first["base_model"], first["model"]) == ("acme/pirate", "tiny", None)
    assert (last["at"], last["key"], last["member"], last["adapter"]) == (
        "2030-03-10T13:00:00Z",
        key.public_id,
        None,
        None,
    )
    [month] = rows(owner, f"{DAY}&bucket=month&by=base_model")
    assert (month["at"], month["day"], month["requests"]) == ("2030-03-01T00:00:00Z", None, 2)
    [everything] = rows(owner, f"{DAY}&bucket=all&by=base_model")
    assert (everything["at"], everything["requests"]) == (None, 2)


def test_equal_to_the_ledger_whatever_was_rolled_up_when(tenant: Tenant, key: ApiKey) -> None:
    """Requests of the last hours, entries that come late and long ones, with a roll-up now and then."""
    chance, now = random.Random(7), timezone.now()
    since = (now - timedelta(hours=30)).replace(minute=0, second=0, microsecond=0)
    until = now.replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)
    requests = []
    for _ in range(120):
        admitted = now - timedelta(minutes=chance.randrange(1, 29 * 60))
        left = now - admitted
        requests.append((admitted + chance.choice([timedelta(seconds=1), left * chance.random(), left]), admitted))
    for step, (over, admitted) in enumerate(sorted(requests)):
        ledger.ended(key, admitted, after=over - admitted, prompt_tokens=10 + step, cost=step)
        if chance.random() < 0.15:
            rollups.catch_up()  # as if it had run when this entry was new
            UsageMark.objects.update(covered_until=over)
        truth = LedgerEntry.objects.filter(tenant=tenant).aggregate(
            n=Count("id"), p=Sum("prompt_tokens"), c=Sum("completion_tokens"), cost=Sum("cost")
        )
        [found] = usage.used(tenant, since, until, bucket="all", by=[])
        assert (found["requests"], found["prompt_tokens"], found["completion_tokens"], found["cost"]) == (
            truth["n"],
            truth["p"],
            truth["c"],
            truth["cost"],
        )


def test_live_before_any_roll_up_and_read_from_it_afterwards(caller: Make, tenant: Tenant, key: ApiKey) -> None:
    at = timezone.now() - timedelta(hours=3)
    ledger.ended(key, at)
    live = rows(caller(), "days=2")
    rollups.catch_up()
    assert rows(caller(), "days=2") == live
    assert live[0]["requests"] == 1
    assert usage.used(tenant, at.replace(minute=0, second=0, microsecond=0), timezone.now()) != []


def test_a_spreadsheet_gets_texts_and_no_formulas(caller: Make, key: ApiKey) -> None:
    ledger.ended(key, NOON)
    owner = caller()
    answer = owner.get(f"/api/usage?{DAY}&format=csv&by=key")
    assert answer["Content-Type"] == "text/csv; charset=utf-8"
    assert "usage-acme.csv" in answer["Content-Disposition"]
    assert list(csv.reader(StringIO(content(answer)))) == [
        ["at", "key", *usage.SUMS],
        ["2030-03-10T00:00:00Z", key.public_id, "1", "0", "10", "4", "5", "7"],
    ]
    assert owner.get(f"/api/usage?{DAY}", Accept="text/csv")["Content-Type"].startswith("text/csv")
    assert owner.get(f"/api/usage?{DAY}&format=json", Accept="text/csv")["Content-Type"].startswith("application/json")
    for text in ("=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1"):
        assert cell(text) == f"'{text}"
    assert (cell("acme/pirate"), cell(-3), cell(None)) == ("acme/pirate", -3, None)


def test_an_inference_key_sees_sums_and_no_keys_or_members(caller: Make, key: ApiKey) -> None:
    ledger.ended(key, NOON)
    program = caller(scope="inference")
    assert [row["model"] for row in rows(program, DAY)] == ["tiny"]
    for part in ("key", "member"):
        assert error(program.get(f"/api/usage?by={part}"), 403)["code"] == "permission_denied"
    assert caller("viewer").get("/api/usage?by=key").status_code == 200


def test_a_stranger_sees_nothing(key: ApiKey, stranger: Caller) -> None:
    ledger.ended(key, NOON)
    rollups.rebuild()
    assert rows(stranger, DAY) == []


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("days=0", "days"),
        ("days=367", "days"),
        ("days=x", "days"),
        ("days=1&from=2030-01-01T00:00:00Z", "days"),
        ("from=2030-02-30", "from"),
        ("from=20300101", "from"),
        ("from=1893456000.5", "from"),
        ("from=2030-01-01T00:00:00", "from"),
        ("from=2030-01-02T00:00:00Z&to=2030-01-01T00:00:00Z", "from"),
        ("from=2030-01-01T00:00:00Z&to=2032-01-01T00:00:00Z", "from"),
        ("from=0001-01-01T00:00:00%2B14:00&to=0001-01-02T00:00:00Z", "from"),
        ("to=9999-12-31T23:59:59Z", "to"),
        ("bucket=year", "bucket"),
        ("by=colour", "by[0]"),
        ("format=xml", "format"),
    ],
)
def test_what_is_wrong_is_named(query: str, param: str, caller: Make) -> None:
    assert error(caller().get(f"/api/usage?{query}"), 400)["param"] == param


def test_too_many_rows_are_refused_but_in_a_file(caller: Make, key: ApiKey, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "MOST_ROWS", 2)
    for hour in range(3):
        ledger.ended(key, NOON + timedelta(hours=hour))
    assert error(caller().get(f"/api/usage?{DAY}&bucket=hour"), 400)["param"] == "from"
    assert len(rows(caller(), DAY)) == 1
    assert len(content(caller().get(f"/api/usage?{DAY}&bucket=hour&format=csv")).splitlines()) == 1 + 3


def test_hours_that_are_not_at_rest_are_read_once_each(tenant: Tenant, key: ApiKey) -> None:
    """However many there are: with one pass for each it would be a hundred times as many rows."""
    now = timezone.now()
    for hour in range(200):
        ledger.ended(key, now - timedelta(hours=hour))
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
    since = (now - timedelta(days=30)).replace(minute=0, second=0, microsecond=0)
    with CaptureQueriesContext(connection) as queries:
        assert usage.dearest(tenant, since, now + timedelta(hours=1), "model", most=9).totals["requests"] == 200
    [query] = [each["sql"] for each in queries.captured_queries]
    with connection.cursor() as cursor:
        cursor.execute("EXPLAIN (ANALYZE, FORMAT JSON) " + query.replace("%", "%%"), [])
        [[found]] = cursor.fetchall()
    [plan] = json.loads(found) if isinstance(found, str) else found
    assert _read(plan["Plan"], "tenants_ledgerentry") <= 3 * 200


def _read(node: dict[str, Any], table: str) -> float:
    """Rows of the table that a plan looked at."""
    mine = node.get("Relation Name") == table
    rows = sum(node.get(name, 0) for name in ("Actual Rows", "Rows Removed by Filter")) if mine else 0
    return rows * node["Actual Loops"] + sum(_read(child, table) for child in node.get("Plans", []))
