"""Budgets, refusals and expiring keys are noticed, and told once."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.db import connection
from django.utils import timezone
from uuid6 import uuid7

from tenants import alerts
from tenants.models import Account, ApiKey, Denial, Member, Tenant, Webhook, WebhookEvent
from tests.tenants.conftest import make_tenant


@pytest.fixture
def acme(db: None) -> Tenant:
    return listening("acme", budget_soft=100, budget_hard=200)


def listening(slug: str, **limits: Any) -> Tenant:
    tenant = make_tenant(slug, **limits)
    Webhook.objects.create(tenant=tenant, url="https://example.org/", events=["*"], secret=b"")
    Webhook.objects.filter(tenant=tenant).update(created_at=timezone.now() - timedelta(days=3))
    return tenant


def spent(tenant: Tenant, subject: str, cost: int) -> None:
    month = timezone.now().date().replace(day=1)
    Account.objects.update_or_create(tenant=tenant, subject=subject, defaults={"month": month, "month_cost": cost})


def told(tenant: Tenant) -> list[tuple[str, dict[str, Any]]]:
    return [(event.type, event.data) for event in WebhookEvent.objects.filter(tenant=tenant).order_by("id")]


def denied(tenant: Tenant, key: ApiKey, limit: str, **values: Any) -> None:
    now = timezone.now()
    common: dict[str, Any] = {"hour": now.replace(minute=0, second=0, microsecond=0), "subject": "tenant", "count": 3}
    Denial.objects.create(
        **{"tenant": tenant, "key": key, "code": "rate_limit_exceeded", "limit": limit, **common, **values},
        last_at=now,
        last_request_id=uuid7(),
        last_model="m",
        last_message="no",
    )


def test_a_budget_is_told_once_when_it_is_reached(acme: Tenant) -> None:
    spent(acme, "tenant", 99)
    alerts.notice()
    assert told(acme) == []
    spent(acme, "tenant", 100)
    alerts.notice()
    alerts.notice()
    [(type, data)] = told(acme)
    assert type == "budget.soft_reached"
    assert data["subject"] == "tenant"
    assert (data["name"], data["limit"], data["used"]) == ("acme", 100, 100)
    spent(acme, "tenant", 200)
    alerts.notice()
    assert [type for type, _ in told(acme)] == ["budget.soft_reached", "budget.hard_reached"]
    Tenant.objects.filter(pk=acme.pk).update(budget_soft=150)
    alerts.notice()
    assert [data["limit"] for _, data in told(acme)] == [100, 200, 150]


def test_a_refusal_alone_is_no_budget_reached(acme: Tenant) -> None:
    key, _ = ApiKey.issue(acme)
    spent(acme, "tenant", 99)
    denied(acme, key, "budget_hard", code="insufficient_quota")
    alerts.notice()
    assert told(acme) == []


def test_a_hard_budget_is_told_again_only_when_more_is_reached(acme: Tenant) -> None:
    key, _ = ApiKey.issue(acme)
    Tenant.objects.filter(pk=acme.pk).update(budget_soft=None)
    spent(acme, "tenant", 200)
    denied(acme, key, "budget_hard", code="insufficient_quota")
    reached = []
    for limit, cost in ((200, 200), (300, 200), (300, 310), (250, 310), (305, 310)):
        Tenant.objects.filter(pk=acme.pk).update(budget_hard=limit)
        spent(acme, "tenant", cost)
        alerts.notice()
        reached.append([data["limit"] for _, data in told(acme)])
    assert reached == [[200], [200], [200, 300], [200, 300], [200, 300, 305]]


def test_budgets_of_members_and_keys(acme: Tenant) -> None:
    user = get_user_model().objects.create_user("ann")
    member = Member.objects.create(tenant=acme, user=user, budget_hard=10)
    key, _ = ApiKey.issue(acme)
    ApiKey.objects.filter(tenant=acme, pk=key.pk).update(budget_soft=5)
    other, _ = ApiKey.issue(acme)
    spent(acme, f"member:{member.pk}", 10)
    spent(acme, f"key:{key.pk}", 5)
    spent(acme, f"key:{other.pk}", 50)
    alerts.notice()
    assert {(type, data["subject"], data["name"]) for type, data in told(acme)} == {
        ("budget.hard_reached", "member", "ann"),
        ("budget.soft_reached", "key", key.public_id),
    }


def test_refusals_of_the_last_hour_are_one_event(acme: Tenant) -> None:
    key, _ = ApiKey.issue(acme)
    last = (timezone.now() - alerts._FLUSHED).replace(minute=0, second=0, microsecond=0) - timedelta(hours=1)
    denied(acme, key, "requests_per_minute", hour=last, count=7)
    denied(acme, key, "tokens_per_minute", hour=last, count=2)
    denied(acme, key, "", hour=last, code="model_not_found", count=100)
    denied(acme, key, "requests_per_minute", hour=last + timedelta(hours=1))
    alerts.notice()
    alerts.notice()
    [(type, data)] = told(acme)
    assert (type, data["requests"]) == ("limit.denied", 9)
    assert [(row["limit"], row["key"], row["requests"]) for row in data["denials"]] == [
        ("requests_per_minute", key.public_id, 7),
        ("tokens_per_minute", key.public_id, 2),
    ]


def test_refusals_are_told_later_when_nobody_looked_in_time(acme: Tenant) -> None:
    key, _ = ApiKey.issue(acme)
    end = (timezone.now() - alerts._FLUSHED).replace(minute=0, second=0, microsecond=0)
    hours = [end - timedelta(hours=ago) for ago in (25, 24, 3, 1)]
    for count, hour in enumerate(hours, start=1):
        denied(acme, key, "requests_per_minute", hour=hour, count=count)
    denied(acme, key, "tokens_per_minute", hour=hours[2], count=30)
    for _ in range(2):
        alerts.notice()
        assert [(data["from"], data["requests"], len(data["denials"])) for _, data in told(acme)] == [
            (f"{hours[1]:%Y-%m-%dT%H:%M:%SZ}", 2, 1),
            (f"{hours[2]:%Y-%m-%dT%H:%M:%SZ}", 33, 2),
            (f"{hours[3]:%Y-%m-%dT%H:%M:%SZ}", 4, 1),
        ]


def test_refusals_before_anybody_listened_are_not_told(acme: Tenant) -> None:
    key, _ = ApiKey.issue(acme)
    end = (timezone.now() - alerts._FLUSHED).replace(minute=0, second=0, microsecond=0)
    for ago in (4, 3, 2):
        denied(acme, key, "requests_per_minute", hour=end - timedelta(hours=ago), count=ago)
    Webhook.objects.filter(tenant=acme).update(created_at=end - timedelta(minutes=150))
    alerts.notice()
    assert [data["requests"] for _, data in told(acme)] == [3, 2]


def test_one_tenant_that_cannot_be_told_stops_nobody_else(acme: Tenant, caplog: pytest.LogCaptureFixture) -> None:
    others = [listening(slug, budget_soft=1) for slug in ("globex", "initech")]
    ApiKey.issue(acme, expires_at=timezone.now() + timedelta(days=3))
    for tenant in (acme, *others):
        spent(tenant, "tenant", 100)
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            f" IF NEW.type = 'budget.soft_reached' AND NEW.tenant_id = '{acme.pk}' THEN"
            " RAISE 'no more room'; END IF; RETURN NEW; END $$;"
            " CREATE TRIGGER refuse BEFORE INSERT ON tenants_webhookevent FOR EACH ROW EXECUTE FUNCTION refuse()"
        )
    alerts.notice()
    assert [type for type, _ in told(acme)] == ["key.expiring"]
    assert [[type for type, _ in told(tenant)] for tenant in others] == [["budget.soft_reached"]] * 2
    assert str(acme.pk) in caplog.text


def test_a_key_that_expires_soon_is_told_once(acme: Tenant) -> None:
    now = timezone.now()
    soon, _ = ApiKey.issue(acme, expires_at=now + timedelta(days=3))
    ApiKey.issue(acme, expires_at=now + timedelta(days=30))
    revoked, _ = ApiKey.issue(acme, expires_at=now + timedelta(days=3))
    ApiKey.objects.filter(tenant=acme, pk=revoked.pk).update(revoked_at=now)
    alerts.notice()
    alerts.notice()
    assert [(type, data["id"]) for type, data in told(acme)] == [("key.expiring", soon.public_id)]


def test_each_tenant_hears_of_its_own(acme: Tenant) -> None:
    globex = listening("globex", budget_soft=1)
    spent(acme, "tenant", 150)
    alerts.notice()
    assert told(globex) == []
    assert len(told(acme)) == 1
