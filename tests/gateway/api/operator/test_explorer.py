"""Requests, ledger, refusals, usage, overview and reconciliation, across tenants."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from uuid6 import uuid7

from fleet.models import Worker, WorkerSample
from tenants import reconciliation_runs, tasks
from tenants.models import (
    Adapter,
    AdapterVersion,
    ApiKey,
    BaseModel,
    Denial,
    InferenceRequest,
    LedgerEntry,
    ReconciliationRun,
    Tenant,
    UsageHour,
    UsageMark,
)
from tests.gateway.api.conftest import Caller
from tests.gateway.api.test_management import error


class Traffic:
    """What tenants left behind."""

    def __init__(self) -> None:
        self.base = BaseModel.objects.create(name="m", fingerprint="f" * 64, directory="/m", context_length=9)
        self.keys: dict[str, ApiKey] = {}

    def request(
        self,
        tenant: Tenant,
        *,
        outcome: str | None = "completed",
        adapter: str | None = None,
        admitted_at: datetime | None = None,
        request_id: UUID | None = None,
    ) -> str:
        key = self.keys.get(tenant.slug) or ApiKey.issue(tenant)[0]
        self.keys[tenant.slug] = key
        version = None
        if adapter is not None:
            owned = Adapter.objects.create(tenant=tenant, name=adapter, base_model=self.base)
            version = AdapterVersion.objects.create(adapter=owned, number=1, state="ready", digest="d" * 64)
        now = admitted_at or timezone.now()
        common = {
            "tenant": tenant, "key": key, "base_model": self.base, "adapter_version": version, "prompt_tokens": 5,
            "admitted_at": now,
        }  # fmt: skip
        request = InferenceRequest.objects.create(
            **common, id=request_id or uuid7(), max_tokens=7, state="settled" if outcome else "running",
            lease_expires_at=now + timedelta(seconds=30), settled_at=now if outcome else None,
        )  # fmt: skip
        if outcome:
            LedgerEntry.objects.create(
                **common,
                request=request,
                cached_tokens=0,
                completion_tokens=3,
                cost=11,
                outcome=outcome,
                created_at=now,
            )
        return str(request.pk)

    def denial(self, tenant: Tenant, code: str = "rate_limit_exceeded", count: int = 4) -> None:
        key = self.keys.get(tenant.slug) or ApiKey.issue(tenant)[0]
        self.keys[tenant.slug] = key
        now = timezone.now()
        Denial.objects.create(
            tenant=tenant, key=key, hour=now.replace(minute=0, second=0, microsecond=0), code=code, count=count,
            limit="requests_per_minute", subject="tenant", last_at=now, last_request_id=uuid4(), last_model="m",
            last_message="used up",
        )  # fmt: skip


@pytest.fixture
def traffic(db: None) -> Traffic:
    return Traffic()


@pytest.fixture
def other(stranger: Caller) -> Tenant:
    assert stranger.tenant is not None
    return stranger.tenant


def data(operator: Caller, path: str) -> list[dict[str, Any]]:
    answer = operator.get(f"/api/operator/{path}")
    assert answer.status_code == 200, answer.content
    return answer.json()["data"]


def test_requests_of_all_tenants(operator: Caller, tenant: Tenant, other: Tenant, traffic: Traffic) -> None:
    first = traffic.request(tenant)
    second = traffic.request(other, adapter="pirate", outcome="failed")
    third = traffic.request(other, outcome=None)
    assert [row["id"] for row in data(operator, "requests")] == [third, second, first]
    assert [row["id"] for row in data(operator, f"requests?limit=1&after={third}")] == [second]
    (row,) = data(operator, "requests?model=globex/pirate")
    assert (row["id"], row["tenant"], row["model"], row["state"]) == (second, "globex", "globex/pirate", "failed")
    assert (row["billed"]["cost"], row["held"]["max_tokens"]) == (11, 7)
    for query, found in {
        "tenant=acme": [first],
        "model=m": [third, first],
        "state=running": [third],
        "state=failed": [second],
        f"key={traffic.keys['acme'].public_id}": [first],
        "since=2100-01-01T00:00:00Z": [],
        "until=2000-01-01T00:00:00Z": [],
    }.items():
        assert [row["id"] for row in data(operator, f"requests?{query}")] == found, query
    assert operator.get(f"/api/operator/requests/{third}").json()["billed"] is None
    for unknown in (str(uuid4()), "x", "a%00"):
        assert error(operator.get(f"/api/operator/requests/{unknown}"), 404)["code"] == "not_found"
    for query in ("state=gone", "since=yesterday", "tenant=a%00b", "limit=0", f"after={uuid4()}"):
        assert error(operator.get(f"/api/operator/requests?{query}"), 400)["param"] == query.partition("=")[0]


def test_the_ledger_of_all_tenants(operator: Caller, tenant: Tenant, other: Tenant, traffic: Traffic) -> None:
    first, second = traffic.request(tenant), traffic.request(other)
    traffic.request(other, outcome=None)
    rows = data(operator, "ledger")
    assert [(row["id"], row["tenant"], row["cost"]) for row in rows] == [(second, "globex", 11), (first, "acme", 11)]
    assert [row["id"] for row in data(operator, f"ledger?after={second}")] == [first]


def at(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def test_times_are_of_admission(operator: Caller, tenant: Tenant, traffic: Traffic) -> None:
    """Ids are by the gateway's clock, which is not quite the database's."""
    now = timezone.now().astimezone(UTC)
    days = {}
    for number, wrong in enumerate((-30, 0, 30)):
        moment = now - timedelta(days=number)
        made = int((moment + timedelta(minutes=wrong)).timestamp() * 1000)
        request_id = UUID(int=made << 80 | uuid4().int & (1 << 80) - 1)
        days[number] = traffic.request(tenant, admitted_at=moment, request_id=request_id)
    for path in ("requests", "ledger"):
        for query, found in {
            f"since={at(now - timedelta(days=1))}": [0, 1],
            f"until={at(now - timedelta(days=1))}": [2],
            f"since={at(now - timedelta(days=2))}&until={at(now)}": [1, 2],
            f"since={at(now - timedelta(days=2))}&until={at(now + timedelta(seconds=1))}": [0, 1, 2],
            "since=0001-01-01T00:00:00Z&until=9999-12-31T23:59:59Z": [0, 1, 2],
            "since=9999-12-31T23:59:59Z": [],
            "until=0001-01-01T00:00:00Z": [],
        }.items():
            assert [row["id"] for row in data(operator, f"{path}?{query}")] == [days[n] for n in found], query


@pytest.mark.parametrize(
    ("path", "index", "condition"),
    [
        ("requests?state=failed", "ledger_not_completed", "outcome"),
        ("requests?until=2030-01-01T00:00:00Z", "tenants_inferencerequest_pkey", "id <"),
        ("requests?since=2020-01-01T00:00:00Z", "tenants_inferencerequest_pkey", "id >="),
        ("ledger?until=2030-01-01T00:00:00Z", "tenants_ledgerentry_request_id_key", "request_id <"),
        ("usage?since=2020-01-01&until=9999-12-31", "usage_", "hour <="),
    ],
)
def test_an_index_leads_to_what_is_asked_for(
    path: str, index: str, condition: str, operator: Caller, tenant: Tenant, traffic: Traffic
) -> None:
    traffic.request(tenant)
    with CaptureQueriesContext(connection) as asked:
        data(operator, path)
    table = {"r": "tenants_inferencerequest", "l": "tenants_ledgerentry", "u": "tenants_usagehour"}[path[0]]
    query, *_ = (one["sql"] for one in asked if f'FROM "{table}"' in one["sql"])  # which they are; then all about them
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off; SET LOCAL enable_sort = off")
        cursor.execute(f"EXPLAIN {query}")
        plan = "\n".join(row[0] for row in cursor.fetchall())
    assert any(index in line for line in plan.splitlines()), plan
    assert any("Index Cond" in line and condition in line for line in plan.splitlines()), plan


def test_refusals_of_all_tenants(operator: Caller, tenant: Tenant, other: Tenant, traffic: Traffic) -> None:
    traffic.denial(tenant)
    traffic.denial(other, "insufficient_quota", 2)
    rows = data(operator, "denials")
    assert [(row["tenant"], row["code"], row["count"]) for row in rows] == [
        ("globex", "insufficient_quota", 2),
        ("acme", "rate_limit_exceeded", 4),
    ]
    assert [row["tenant"] for row in data(operator, f"denials?limit=1&after={rows[0]['id']}")] == ["acme"]
    assert [row["tenant"] for row in data(operator, "denials?code=insufficient_quota")] == ["globex"]
    assert data(operator, "denials?model=m&tenant=acme")[0]["last"]["message"] == "used up"


def test_usage_is_what_was_rolled_up(operator: Caller, tenant: Tenant, other: Tenant, traffic: Traffic) -> None:
    traffic.request(tenant)
    traffic.request(tenant, outcome="failed")
    traffic.request(other)
    assert data(operator, "usage") == []
    tasks.roll_up()
    rows = {row["tenant"]: row for row in data(operator, "usage")}
    assert (rows["acme"]["requests"], rows["acme"]["not_completed"], rows["acme"]["cost"]) == (2, 1, 22)
    assert set(rows) == {"acme", "globex"}
    assert [row["tenant"] for row in data(operator, "usage?tenant=globex")] == ["globex"]
    assert data(operator, "usage?until=2001-01-01") == []


# Overview -------------------------------------------------------------------------------------------------------------


def report(first_token: list[int], **values: Any) -> dict[str, Any]:
    empty: list[Any] = [[], []]
    return {
        "running": 1, "waiting": 2, "kv_usage": 0.5, "slots": 8, "resident": ["d"], "version": "1.0",
        "first_token": [[0.1, 1.0], first_token], "inter_token": empty, "queue": empty,
    } | values  # fmt: skip


def test_the_overview_adds_up(operator: Caller, tenant: Tenant, traffic: Traffic) -> None:
    traffic.request(tenant)
    traffic.request(tenant, outcome="failed")
    traffic.request(tenant, outcome=None)
    traffic.denial(tenant)
    tasks.roll_up()
    worker = Worker.objects.create(name="w", url="http://127.0.0.1:1", base_model=traffic.base)
    now = timezone.now()
    for at, counts in ((now - timedelta(minutes=90), [900] * 3), (now - timedelta(minutes=9), [10, 10, 10])):
        WorkerSample.objects.create(worker=worker, at=at, report=report(counts))
    WorkerSample.objects.create(worker=worker, at=now, report=report([10, 20, 20]))
    found = operator.get("/api/operator/overview?hours=2").json()
    totals = found["totals"]
    assert (totals["requests"], totals["cost"], totals["denied"], totals["error_rate"]) == (2, 22, 4, 0.5)
    assert (totals["denial_rate"], found["running"]) == (4 / 6, 1)
    assert (len(found["hours"]), found["hours"][-1]["requests"]) == (2, 2)
    assert found["tenants"] == {"active": 1, "suspended": 0}
    (shown,) = found["workers"]
    assert (shown["stale"], shown["kv_usage"], shown["resident"]) == (False, 0.5, 1)
    assert shown["first_token"] == {"count": 10, "p50": 0.55, "p90": pytest.approx(0.91), "p99": pytest.approx(0.991)}
    assert shown["inter_token"] == {"count": 0, "p50": None, "p90": None, "p99": None}
    assert found["alerts"] == []


def test_alerts_say_what_to_do(operator: Caller, traffic: Traffic) -> None:
    now = timezone.now()
    BaseModel.objects.create(name="lonely", fingerprint="f" * 64, directory="/", context_length=9)
    down, unseen, serves = (
        Worker.objects.create(name=name, url="http://127.0.0.1:1", base_model=traffic.base)
        for name in ("down", "unseen", "serves")
    )
    WorkerSample.objects.create(worker=down, at=now, problem="did not answer within 2 s")
    WorkerSample.objects.create(worker=unseen, at=now - timedelta(minutes=5), report=report([1, 1, 1]))
    WorkerSample.objects.create(worker=serves, at=now, report=report([1, 1, 1]))
    UsageMark.objects.create(pk=1, covered_until=now - timedelta(hours=1))
    ReconciliationRun.objects.create(state="done", ok=False, asked_by="tests")
    alerts = operator.get("/api/operator/overview").json()["alerts"]
    assert [(alert["code"], alert["about"]) for alert in alerts[:-1]] == [
        ("worker_down", "down"),
        ("worker_unseen", "unseen"),
        ("model_unserved", "lonely"),
        ("rollups_late", "usage"),
    ]
    assert alerts[-1]["code"] == "books_wrong"
    assert all(alert["message"] and alert["action"] for alert in alerts)


# Reconciliation -------------------------------------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
def test_a_reconciliation_is_asked_for_and_done_later(operator: Caller, tenant: Tenant, transactional_db: None) -> None:
    path = "/api/operator/reconciliations"
    asked = operator.post(path, {"tenant": "acme"})
    assert (asked.status_code, asked.json()["state"], asked.json()["ok"]) == (202, "queued", None)
    assert tasks.reconcile_asked() == 1
    done = operator.get(f"{path}/{asked.json()['id']}").json()
    assert (done["state"], done["ok"], done["findings"], done["tenant"]) == ("done", True, [], "acme")
    assert done["asked_by"] == "operator tests"
    Traffic().request(tenant)  # a ledger entry that no account knows of
    assert tasks.reconcile() is False
    latest, _ = operator.get(path).json()["data"]
    assert (latest["ok"], latest["asked_by"], latest["entries"]) == (False, "system reconcile", 1)
    assert latest["findings"][0]["tenant"] == "acme"
    assert tasks.reconcile_asked() == 0


def test_a_reconciliation_of_nobody(operator: Caller, tenant: Tenant) -> None:
    path = "/api/operator/reconciliations"
    assert error(operator.post(path, {"tenant": "none-such"}), 400)["param"] == "tenant"
    for unknown in (str(uuid4()), "x"):
        assert error(operator.get(f"{path}/{unknown}"), 404)["code"] == "not_found"
    run = ReconciliationRun.objects.create(tenant="gone", asked_by="tests")
    reconciliation_runs.perform(run)
    assert operator.get(f"{path}/{run.pk}").json()["message"] == "There is no tenant 'gone'."


# All lists ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["requests?limit=100", "ledger?limit=100", "denials?limit=100", "usage", "overview"])
def test_queries_do_not_grow_with_what_there_is(path: str, operator: Caller, tenant: Tenant, traffic: Traffic) -> None:
    def add(count: int) -> None:
        for _ in range(count):
            number = Tenant.objects.count()
            each = Tenant.objects.create(slug=f"t{number}", display_name="T", plan=tenant.plan)
            traffic.request(each, adapter="pirate")
            traffic.denial(each)
            worker = Worker.objects.create(name=f"w{number}", url="http://127.0.0.1:1", base_model=traffic.base)
            WorkerSample.objects.create(worker=worker, at=timezone.now(), report=report([1, 1, 1]))
        tasks.roll_up()

    def queries() -> int:
        with CaptureQueriesContext(connection) as seen:
            assert operator.get(f"/api/operator/{path}").status_code == 200
        return len(seen)

    add(1)
    queries()  # the key's last use is written once a minute
    few = queries()
    add(30)
    assert queries() == few
    assert UsageHour.objects.unscoped().count() == 31
