from __future__ import annotations

import asyncio
import csv
from datetime import UTC, datetime, timedelta
from io import StringIO
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from console.spans import span_of
from tenants import rollups
from tenants.callers import Role
from tenants.models import ApiKey, AuditEntry, Member, ReconciliationRun
from tests.console.people import client_of, member, operator
from tests.gateway.api import ledger
from tests.gateway.house import Actor, House

pytestmark = pytest.mark.django_db

NOON = datetime(2024, 3, 10, 12, tzinfo=UTC)
MARCH = {"from": "2024-03-01", "to": "2024-03-31"}


def page(client: Client, place: str, **query: str) -> Any:
    answer = client.get(f"/console/{place}", query)
    assert answer.status_code == 200, answer.content
    return answer


def content(answer: Any) -> str:
    """Of a file, which is sent in pieces."""

    async def read() -> bytes:
        return b"".join([chunk async for chunk in answer.streaming_content])

    return asyncio.run(read()).decode()


def test_by_what_it_cost_the_dearest_first(acme: Actor) -> None:
    version = ledger.adapter(acme.tenant, "pirate")
    user = member(acme.tenant, Role.VIEWER, "ada")
    theirs, _ = ApiKey.issue(acme.tenant, name="<ci>", member=Member.objects.get(tenant=acme.tenant, user=user))
    ledger.ended(acme.key, NOON, cost=1_000_000)
    ledger.ended(theirs, NOON, cost=3_000_000, version=version, outcome="failed")
    client = client_of(user)
    answer = page(client, "t/acme/usage", **MARCH)
    assert [(row["name"], row["cost"]) for row in answer.context["rows"]] == [
        ("acme/pirate", 3_000_000),
        ("tiny", 1_000_000),
    ]
    text = answer.content.decode()
    assert "3.00 USD" in text
    assert "75.0 %" in text
    assert "4.00 USD" in text
    found = {by: page(client, "t/acme/usage", by=by, **MARCH) for by in ("adapter", "key", "member", "day", "month")}
    rows = {by: [row["text"] for row in answer.context["rows"]] for by, answer in found.items()}
    assert rows == {
        "adapter": ["acme/pirate", "no adapter: the base model"],
        "key": ["<ci>", acme.key.public_id],
        "member": ["ada", "no member: the account's own keys"],
        "day": ["2024-03-10"],
        "month": ["2024-03"],
    }
    assert "&lt;ci&gt;" in found["key"].content.decode()


def test_what_is_searched_is_found_and_nothing_else(acme: Actor) -> None:
    for name in ("pirate", "parrot_1", "parrotx1"):
        ledger.ended(acme.key, NOON, version=ledger.adapter(acme.tenant, name))
    client = client_of(member(acme.tenant))
    names = {
        text: [row["name"] for row in page(client, "t/acme/usage", by="adapter", q=text, **MARCH).context["rows"]]
        for text in ("PIRATE", "parrot_", "%", "\\", "'")
    }
    assert names == {"PIRATE": ["acme/pirate"], "parrot_": ["acme/parrot_1"], "%": [], "\\": [], "'": []}
    assert "Nothing with “zebra”" in page(client, "t/acme/usage", q="zebra", **MARCH).content.decode()


def test_more_than_is_shown_is_in_the_totals_and_the_file(acme: Actor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("console.screens.usage.SHOWN", 2)
    for number in range(4):
        ledger.ended(acme.key, NOON, cost=number + 1, version=ledger.adapter(acme.tenant, f"a{number}"))
    client = client_of(member(acme.tenant))
    answer = page(client, "t/acme/usage", by="adapter", **MARCH)
    assert [row["name"] for row in answer.context["rows"]] == ["acme/a3", "acme/a2"]
    assert (answer.context["totals"]["cost"], answer.context["hidden"]) == (10, 2)
    assert "2 more are in the totals" in answer.content.decode()
    saved = page(client, "t/acme/usage", by="adapter", format="csv", each="day", **MARCH)
    named = "usage-acme-2024-03-01-2024-03-31-by-adapter-and-day.csv"
    assert saved["Content-Disposition"] == f'attachment; filename="{named}"'
    rows = list(csv.DictReader(StringIO(content(saved))))
    assert [(row["at"], row["adapter"]) for row in rows] == [
        ("2024-03-10T00:00:00Z", f"acme/a{number}") for number in range(4)
    ]
    whole = page(client, "t/acme/usage", format="csv", **MARCH)
    assert whole["Content-Disposition"].endswith('-by-model.csv"'), "each question's file has a name of its own"
    assert content(whole).startswith("at,model,requests")


@pytest.mark.parametrize("place", ["t/acme/usage", "usage"])
def test_a_file_has_every_row_and_holds_nothing_of_the_database(
    acme: Actor, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("usage.MOST_ROWS", 2), ("usage._AT_ONCE", 3), ("usage_csv._IN_MEMORY", 50)):
        monkeypatch.setattr(f"tenants.{name}", value)
    for number in range(10):
        ledger.ended(acme.key, NOON, version=ledger.adapter(acme.tenant, f"a{number}"))
    rollups.rebuild()
    saved = page(client_of(operator()), place, by="adapter", format="csv", each="day", **MARCH)
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_cursors")
        assert cursor.fetchone() == (0,)
    text = content(saved)
    assert [row["adapter"] for row in csv.DictReader(StringIO(text))] == [f"acme/a{number}" for number in range(10)]
    assert saved["Content-Length"] == str(len(text))


def test_an_operator_sees_every_account_as_far_as_it_is_rolled_up(house: House, acme: Actor) -> None:
    other = house.actor("other")
    ledger.ended(acme.key, NOON, cost=5)
    ledger.ended(other.key, NOON, cost=7)
    client = client_of(operator())
    assert page(client, "usage", **MARCH).context["rows"] == []
    rollups.rebuild()
    answer = page(client, "usage", **MARCH)
    assert [(row["name"], row["label"], row["cost"]) for row in answer.context["rows"]] == [
        ("other", "Other", 7),
        ("acme", "Acme", 5),
    ]
    assert "/console/t/other/usage?from=2024-03-01" in answer.content.decode()
    assert [row["name"] for row in page(client, "usage", q="ACM", **MARCH).context["rows"]] == ["acme"]
    assert [row["cost"] for row in page(client, "usage", by="base_model", **MARCH).context["rows"]] == [12]
    assert [row["cost"] for row in page(client, "t/acme/usage", **MARCH).context["rows"]] == [5]


def test_charts_have_every_day_and_a_table(acme: Actor) -> None:
    today = timezone.now()
    ledger.ended(acme.key, today - timedelta(days=2), cost=2_000_000, prompt_tokens=300)
    answer = page(client_of(member(acme.tenant)), "t/acme/usage/chart", period="7d")
    cost, tokens, requests = answer.context["charts"]
    assert list(cost.series["Cost"]) == [0, 0, 0, 0, 2_000_000, 0, 0]
    assert list(tokens.series["Prompt"])[4] == 300
    assert list(requests.series) == ["Ended", "Not completed"]
    assert cost.rows[2] == (f"{today - timedelta(days=2):%Y-%m-%d}", ["2.00 USD"])
    assert "<!doctype" in answer.content.decode()
    part = client_of(member(acme.tenant)).get("/console/t/acme/usage/chart", headers={"HX-Request": "true"})
    assert "<!doctype" not in part.content.decode()


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ({"by": "secret"}, "by has to be one of"),
        ({"by": "tenant"}, "by has to be one of"),
        ({"period": "eternity"}, "period has to be one of"),
        ({"from": "yesterday"}, "from has to be a day such as"),
        ({"from": "2024-03-02", "to": "2024-03-01"}, "from has to be a day before to"),
        ({"from": "2014-01-01", "to": "2024-03-01"}, "at most 366 days"),
        ({"to": "9999-12-31"}, "to has to be a day between"),
        ({"from": "0001-01-01"}, "from has to be a day between"),
        ({"format": "xls"}, "format has to be csv"),
        ({"from": "2024-\x0001"}, "from has to be a day such as"),
    ],
)
def test_what_cannot_be_asked_is_said(acme: Actor, query: dict[str, str], words: str) -> None:
    client = client_of(member(acme.tenant))
    answer = client.get("/console/t/acme/usage", query)
    assert answer.status_code == 400
    assert words in answer.content.decode()
    for name, value in (("q", "a\0b"), ("period", ""), ("from", "")):
        page(client, "t/acme/usage", **{name: value})


def test_periods_begin_and_end_with_days(rf: Any) -> None:
    today = timezone.now().date()
    for period, first in (("today", today), ("7d", today - timedelta(days=6)), ("month", today.replace(day=1))):
        assert (span_of(rf.get("/", {"period": period}).GET).first) == first
    last = span_of(rf.get("/", {"period": "last-month"}).GET)
    assert (last.first.day, last.last) == (1, today.replace(day=1) - timedelta(days=1))
    year = span_of(rf.get("/", {"period": "year"}).GET)
    assert (year.first.day, year.bucket) == (1, "month")


def test_this_month_against_the_budget(acme: Actor) -> None:
    client = client_of(member(acme.tenant))
    assert "No budget is set" in page(client, "t/acme/usage").content.decode()
    acme.tenant.budget_hard, acme.tenant.budget_soft = 2_000_000, 1_000_000
    acme.tenant.save()
    text = page(client, "t/acme/usage").content.decode()
    assert "2.00 USD left of 2.00 USD" in text
    assert "A warning is given from 1.00 USD on: after 1.00 USD more." in text


@pytest.mark.parametrize("place", ["usage", "t/acme/usage", "t/acme/usage/chart", "usage/chart"])
def test_as_many_queries_for_thirty_rows_as_for_three(acme: Actor, place: str) -> None:
    client = client_of(operator())

    def queries() -> int:
        rollups.rebuild()
        with CaptureQueriesContext(
            connection,
        ) as seen:
            page(client, place, **MARCH)
        return len(seen)

    def use(count: int) -> None:
        for number in range(count):
            key, _ = ApiKey.issue(acme.tenant, name=f"k{number}")
            ledger.ended(key, NOON + timedelta(hours=number % 5))

    use(3)
    few = queries()
    use(27)
    assert queries() == few


def test_books_are_looked_at_when_an_operator_asks(acme: Actor) -> None:
    client = client_of(operator())
    assert "not reconciled yet" in page(client, "usage").content.decode()
    assert "Nothing was reconciled yet" in page(client, "usage/reconciliation").content.decode()
    answer = client.post("/console/usage/reconciliation")
    assert (answer.status_code, answer["Location"]) == (302, "/console/usage/reconciliation")
    entry = AuditEntry.objects.unscoped().get()
    assert (entry.action, entry.actor_kind, entry.actor_name) == ("reconciliation.asked", "operator", "root")
    assert "A reconciliation is waiting" in page(client, "usage").content.decode()
    ReconciliationRun.objects.update(
        state="done", ok=True, finished_at=timezone.now(), result={"requests": 1, "cost": 2}
    )
    assert "the books add up" in page(client, "usage").content.decode()
    finding = {"check": "accounts", "tenant": "acme", "about": "<tenant>", "found": "1 instead of 2"}
    ReconciliationRun.objects.create(asked_by="x", state="done", ok=False, result={"findings": [finding]})
    assert "1 finding<" in page(client, "usage").content.decode()
    text = page(client, "usage/reconciliation").content.decode()
    assert "&lt;tenant&gt;: 1 instead of 2" in text
    assert client_of(member(acme.tenant)).post("/console/usage/reconciliation").status_code == 404
