from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from fleet.models import Worker, WorkerSample
from tenants import rollups
from tenants.models import AdapterVersion, ApiKey, Denial, Webhook
from tests.console.people import client_of, member, operator
from tests.gateway.api import ledger
from tests.gateway.house import Actor, House

pytestmark = pytest.mark.django_db

REPORT = {
    "running": 3, "waiting": 2, "kv_usage": 0.5, "slots": 8, "resident": ["d"], "version": "1.0",
    "first_token": [[0.1, 1.0], [0, 10, 10]], "inter_token": [[0.1], [5, 5]], "queue": [[], []],
}  # fmt: skip


def sample(worker: Worker, age: timedelta = timedelta(seconds=5), problem: str = "", **report: Any) -> None:
    WorkerSample.objects.create(worker=worker, at=timezone.now() - age, problem=problem, report=REPORT | report)


def shown(user: Any, place: str) -> Any:
    answer = client_of(user).get(f"/console/{place}overview")
    assert answer.status_code == 200
    return answer


def test_an_operator_sees_load_latencies_and_what_needs_doing(house: House, acme: Actor) -> None:
    fine, down = house.worker("http://127.0.0.1:1", "fine"), house.worker("http://127.0.0.1:2", "down")
    sample(fine, timedelta(minutes=10), first_token=[[0.1, 1.0], [0, 4, 4]])
    sample(fine)
    sample(down, problem="did not answer")
    ledger.ended(acme.key, timezone.now() - timedelta(hours=2), cost=1_500_000, outcome="failed")
    ledger.request(acme.key, timezone.now())
    rollups.catch_up()
    answer = shown(operator(), "")
    text = answer.content.decode()
    assert "KV cache of fine" in text
    assert "1 of 8" in text
    assert "down serves nothing: did not answer." in text
    assert "1.50 USD" in text
    assert "100.0 %" in text
    assert dict(answer.context["latencies"])["To the first token"] == {
        "count": 6,
        "p50": pytest.approx(0.55),
        "p90": pytest.approx(0.91),
        "p99": pytest.approx(0.991),
    }
    assert answer.context["now"]["recent"].running == 1


def test_a_member_sees_nothing_of_workers_but_whether_models_can_be_had(house: House, acme: Actor) -> None:
    worker = house.worker("http://127.0.0.1:1", "secret-worker")
    sample(worker)
    other = house.actor("other")
    ledger.ended(other.key, timezone.now(), cost=999_000_000)
    text = shown(member(acme.tenant), "t/acme/").content.decode()
    assert f"{house.base.name}: available" in text
    for foreign in ("secret-worker", "KV cache", "999.00", "other"):
        assert foreign not in text
    WorkerSample.objects.update(problem="gone")
    text = shown(member(acme.tenant), "t/acme/").content.decode()
    assert f"The model {house.base.name} is not available at the moment." in text
    assert "gone" not in text


@pytest.mark.parametrize("seen", [None, timedelta(minutes=10)], ids=["never", "long ago"])
def test_what_is_not_known_of_workers_alarms_no_tenant(house: House, acme: Actor, seen: timedelta | None) -> None:
    """Nobody samples, as without Celery; gateways ask workers themselves and go on serving."""
    worker = house.worker("http://127.0.0.1:1", "w1")
    if seen is not None:
        sample(worker, seen, problem="it was down then")
    answer = shown(member(acme.tenant), "t/acme/")
    assert answer.context["now"]["available"] == [(house.base.name, None)]
    assert f"{house.base.name}: not known" in answer.content.decode()
    assert "available" not in answer.content.decode()
    assert answer.context["alerts"] == []
    alerts = shown(operator(), "").context["alerts"]
    assert [alert["code"] for alert in alerts] == ([] if seen is None else ["worker_unseen"])


def test_a_model_is_not_to_be_had_only_where_all_its_workers_are_known_not_to_serve(house: House, acme: Actor) -> None:
    down, other = house.worker("http://127.0.0.1:1", "down"), house.worker("http://127.0.0.1:2", "other")
    sample(down, problem="did not answer")

    def available() -> Any:
        ((_, found),) = shown(member(acme.tenant), "t/acme/").context["now"]["available"]
        return found

    def unserved() -> bool:
        return "model_unserved" in [alert["code"] for alert in shown(client, "").context["alerts"]]

    client = operator()
    assert (available(), unserved()) == (None, False)
    sample(other)
    assert (available(), unserved()) == (True, False)
    Worker.objects.filter(name="other").update(state="draining")
    assert (available(), unserved()) == (False, True)


def test_load_of_long_ago_is_not_shown_as_that_of_now(house: House, acme: Actor) -> None:
    sample(house.worker("http://127.0.0.1:1", "w1"), timedelta(minutes=10))
    text = shown(operator(), "").content.decode()
    assert "not asked for minutes" in text
    assert '<span class="tag good">active</span>' not in text


def test_a_new_account_is_told_what_to_do_first(house: House, acme: Actor) -> None:
    ApiKey.objects.filter(tenant=acme.tenant).delete()
    user = member(acme.tenant)
    text = shown(user, "t/acme/").content.decode()
    assert "First steps" in text
    assert 'href="/console/t/acme/keys">Make a key' in text
    ApiKey.issue(acme.tenant)
    assert "✓ A key is there." in shown(user, "t/acme/").content.decode()


def test_an_operator_without_anything_is_told_what_to_do_first(db: None) -> None:
    text = shown(operator(), "").content.decode()
    assert "First steps" in text
    assert "register_worker" in text


def test_what_needs_doing_is_said_with_what_to_do(house: House, acme: Actor) -> None:
    now = timezone.now()
    for name in ("soon", "sooner", "soonest", "<last>"):
        ApiKey.issue(acme.tenant, name=name, expires_at=now + timedelta(days=3))
    ApiKey.issue(acme.tenant, name="later", expires_at=now + timedelta(days=30))
    mended = ledger.adapter(acme.tenant, "mended")
    AdapterVersion.objects.create(adapter=mended.adapter, number=2, state="rejected")
    AdapterVersion.objects.create(adapter=mended.adapter, number=3, state="pending")
    broken = ledger.adapter(acme.tenant, "broken")
    AdapterVersion.objects.create(adapter=broken.adapter, number=2, state="rejected")
    hook = {"tenant": acme.tenant, "events": ["*"], "secret": b""}
    Webhook.objects.create(**hook, url="https://a.example/", failing_since=now)
    Webhook.objects.create(**hook, url="https://b.example/", state="disabled")
    Webhook.objects.create(**hook, url="https://fine.example/")
    Denial.objects.create(
        tenant=acme.tenant, key=acme.key, hour=now.replace(minute=0, second=0, microsecond=0), code="rate_limit",
        limit="tokens_per_minute", subject="key", count=5, last_at=now, last_request_id=uuid4(), last_model="m",
        last_message="too fast",
    )  # fmt: skip
    Denial.objects.create(
        tenant=acme.tenant, key=acme.key, hour=now.replace(minute=0, second=0, microsecond=0),
        code="address_not_allowed", limit="", subject="", count=2, last_at=now, last_request_id=uuid4(),
        last_model="m", last_message="from elsewhere",
    )  # fmt: skip
    text = shown(member(acme.tenant), "t/acme/").content.decode()
    assert text.count("slower or have more") == 1
    for words in (
        "from where, and whether their addresses should be allowed",
        'The key soon expires on <time datetime="',
        "(1 more)",
        "Version 2 of the adapter broken was rejected.",
        "The webhook https://a.example fails.",
        "The webhook https://b.example was switched off after failing long.",
        "5 requests were refused in this hour: tokens_per_minute.",
    ):
        assert words in text
    for words in ("later", "mended", "fine.example"):
        assert words not in text
    stranger = house.actor("stranger")
    assert "expires on" not in shown(member(stranger.tenant), "t/stranger/").content.decode()


@pytest.mark.parametrize(
    ("used", "words"),
    [(79, None), (80, "80 % of this month&#x27;s budget is used."), (100, "All of this month&#x27;s budget is used")],
)
def test_a_budget_is_told_of_before_it_is_used_up(house: House, acme: Actor, used: int, words: str | None) -> None:
    acme.tenant.budget_hard = 100
    acme.tenant.save()
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO tenants_account (tenant_id, subject, requests_us, tokens_us, day_tokens, month, month_tokens,"
            " month_cost, held_tokens, held_cost, settled_count, settled_tokens, settled_cost)"
            " VALUES (%s, 'tenant', 0, 0, 0, tenants_month(now()), 0, %s, 0, 0, 0, 0, 0)",
            [acme.tenant.pk, used],
        )
    text = shown(member(acme.tenant), "t/acme/").content.decode()
    assert (words is None and "budget is used" not in text) or (words is not None and words in text)


@pytest.mark.parametrize("place", ["", "t/acme/"])
def test_as_many_queries_for_much_as_for_little(house: House, acme: Actor, place: str) -> None:
    client = client_of(operator())

    def grow(count: int) -> None:
        for number in range(count):
            sample(house.worker(f"http://127.0.0.1:{number + 1}"))
            key, _ = ApiKey.issue(acme.tenant, name=f"k{number}", expires_at=timezone.now() + timedelta(days=1))
            ledger.ended(key, timezone.now() - timedelta(hours=number % 20))
        rollups.rebuild()

    def queries() -> int:
        with CaptureQueriesContext(connection) as seen:
            assert client.get(f"/console/{place}overview").status_code == 200
        return len(seen)

    grow(3)
    few = queries()
    grow(27)
    assert queries() == few
