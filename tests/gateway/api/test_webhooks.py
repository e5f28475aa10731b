"""Webhooks over REST: made, changed, tried, looked into and sent again; by the tenant's own people only."""

from __future__ import annotations

from typing import Any

import pytest
from django.utils import timezone

from tenants import webhooks
from tenants.models import AuditEntry, Tenant, Webhook, WebhookAttempt, WebhookDelivery
from tests.gateway.api.conftest import Caller, Make
from tests.gateway.api.test_management import error

NEW = {"url": "https://example.org/hook?token=abc", "events": ["key.revoked", "adapter.ready"]}


@pytest.fixture
def made(caller: Make) -> dict[str, Any]:
    answer = caller().post("/api/webhooks", NEW)
    assert answer.status_code == 201, answer.content
    return answer.json()


def test_a_webhook_is_made_listed_changed_and_removed(caller: Make, tenant: Tenant, made: dict[str, Any]) -> None:
    owner = caller()
    assert made["secret"].startswith("whsec_")
    assert (made["events"], made["state"]) == (["adapter.ready", "key.revoked"], "active")
    path = f"/api/webhooks/{made['id']}"
    [listed] = owner.get("/api/webhooks").json()["data"]
    assert listed == owner.get(path).json() == {name: value for name, value in made.items() if name != "secret"}
    changed = owner.patch(path, {"state": "paused", "events": ["*"], "description": "ours"}).json()
    assert (changed["state"], changed["events"], changed["url"]) == ("paused", ["*"], NEW["url"])
    assert owner.delete(path).status_code == 204
    assert error(owner.get(path), 404)["code"] == "not_found"
    actions = list(AuditEntry.objects.filter(tenant=tenant).order_by("id").values_list("action", flat=True))
    assert actions == ["webhook.created", "webhook.changed", "webhook.removed"]
    assert "abc" not in str(list(AuditEntry.objects.filter(tenant=tenant).values_list("before", "after")))


def test_the_same_request_twice_makes_one_and_shows_the_secret_once(caller: Make, tenant: Tenant) -> None:
    owner, key = caller(), {"Idempotency-Key": "k"}
    first, second = owner.post("/api/webhooks", NEW, **key), owner.post("/api/webhooks", NEW, **key)
    assert (first.status_code, second.status_code) == (201, 201)
    assert second.json() == first.json() | {"secret": None}
    assert Webhook.objects.filter(tenant=tenant).count() == 1


def test_a_rotated_secret_overlaps_with_the_former(caller: Make, made: dict[str, Any]) -> None:
    path = f"/api/webhooks/{made['id']}/rotate-secret"
    answer = caller().post(path, {"overlap_seconds": 60}).json()
    assert answer["secret"].startswith("whsec_")
    assert answer["secret"] != made["secret"]
    assert answer["previous_secret_until"] is not None
    assert caller().post(path, {"overlap_seconds": 0}).json()["previous_secret_until"] is None


def test_a_delivery_is_looked_into_and_sent_again(caller: Make, tenant: Tenant, made: dict[str, Any]) -> None:
    owner, path = caller(), f"/api/webhooks/{made['id']}"
    tried = owner.post(f"{path}/test")
    assert (tried.status_code, tried.json()["type"], tried.json()["state"]) == (202, "webhook.test", "pending")
    delivery = WebhookDelivery.objects.get(webhook__tenant=tenant)
    at = timezone.now()
    WebhookAttempt.objects.create(
        tenant=tenant, delivery=delivery, at=at, milliseconds=12, status=500, error="answered with 500", answer="oh"
    )
    WebhookDelivery.objects.filter(webhook__tenant=tenant).update(state="failed", tries=10)
    one = owner.get(f"{path}/deliveries/{delivery.pk}").json()
    assert (one["state"], one["tries"], one["next_try_at"]) == ("failed", 10, None)
    assert one["data"] == {"webhook": made["id"]}
    assert [(a["status"], a["milliseconds"], a["answer"]) for a in one["attempts"]] == [(500, 12, "oh")]
    assert [d["id"] for d in owner.get(f"{path}/deliveries?state=failed").json()["data"]] == [str(delivery.pk)]
    assert owner.get(f"{path}/deliveries?state=pending").json()["data"] == []
    assert owner.post(f"{path}/replay", {"since": "2020-01-01T00:00:00Z"}).json() == {"deliveries": 1}
    assert owner.post(f"{path}/replay", {"since": "2020-01-01T00:00:00Z"}).json() == {"deliveries": 0}
    again = owner.post(f"{path}/deliveries/{delivery.pk}/replay")
    assert (again.status_code, again.json()["state"], again.json()["tries"]) == (202, "pending", 0)
    owner.patch(path, {"state": "paused"})
    assert error(owner.post(f"{path}/test"), 409)["code"] == "webhook_not_active"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"events": ["*"]}, "url"),
        ({**NEW, "url": "http://example.org/"}, "url"),
        ({**NEW, "url": "https://127.0.0.1/"}, "url"),
        ({**NEW, "url": "https://user:pw@example.org/"}, "url"),
        ({**NEW, "url": 5}, "url"),
        ({**NEW, "url": "https://example.org/" + "x" * 2000}, "url"),
        ({**NEW, "events": []}, "events"),
        ({**NEW, "events": ["key.exploded"]}, "events"),
        ({**NEW, "events": ["*", "key.revoked"]}, "events"),
        ({**NEW, "events": "*"}, "events"),
        ({**NEW, "description": "x" * 201}, "description"),
        ({**NEW, "description": "a\0b"}, "description"),
        ({**NEW, "state": "active"}, "state"),
    ],
)
def test_what_is_wrong_is_named(body: dict[str, Any], param: str, caller: Make) -> None:
    assert error(caller().post("/api/webhooks", body), 400)["param"] == param


def test_wrong_changes_are_named(caller: Make, made: dict[str, Any]) -> None:
    owner, path = caller(), f"/api/webhooks/{made['id']}"
    assert error(owner.patch(path, {"state": "disabled"}), 400)["param"] == "state"
    assert error(owner.post(f"{path}/rotate-secret", {"overlap_seconds": -1}), 400)["param"] == "overlap_seconds"
    assert error(owner.post(f"{path}/replay", {"since": "2030-01-01T00:00:00"}), 400)["param"] == "since"
    assert error(owner.get(f"{path}/deliveries?state=lost"), 400)["param"] == "state"


def test_there_are_at_most_so_many(caller: Make, tenant: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhooks, "MOST_WEBHOOKS", 2)
    answers = [caller().post("/api/webhooks", NEW) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [201, 201, 409]
    assert answers[2].json()["error"]["code"] == "too_many_webhooks"


PATHS = [
    ("get", ""),
    ("patch", ""),
    ("delete", ""),
    ("post", "/rotate-secret"),
    ("post", "/test"),
    ("post", "/replay"),
    ("get", "/deliveries"),
    ("get", "/deliveries/{delivery}"),
    ("post", "/deliveries/{delivery}/replay"),
]


def _body(path: str) -> dict[str, str]:
    return {"since": "2020-01-01T00:00:00Z"} if path == "/replay" else {}


@pytest.mark.parametrize(("method", "path"), PATHS)
def test_a_stranger_gets_what_nobodys_webhook_gives(
    method: str, path: str, caller: Make, made: dict[str, Any], stranger: Caller
) -> None:
    delivery = caller().post(f"/api/webhooks/{made['id']}/test").json()["id"]
    arguments = () if method in ("get", "delete") else (_body(path),)
    theirs = getattr(stranger, method)(f"/api/webhooks/{made['id']}{path.format(delivery=delivery)}", *arguments)
    for nobodys in ("01890000-0000-7000-8000-000000000000", "x"):
        nothing = getattr(stranger, method)(f"/api/webhooks/{nobodys}{path.format(delivery=delivery)}", *arguments)
        assert error(nothing, 404)["message"].replace(nobodys, "") == (
            error(theirs, 404)["message"].replace(made["id"], "")
        )
    assert stranger.get("/api/webhooks").json()["data"] == []
    assert Webhook.objects.unscoped().filter(state="active").count() == 1


def test_a_delivery_is_found_only_under_its_own_webhook(caller: Make, made: dict[str, Any]) -> None:
    owner = caller()
    delivery = owner.post(f"/api/webhooks/{made['id']}/test").json()["id"]
    other = owner.post("/api/webhooks", NEW).json()["id"]
    error(owner.get(f"/api/webhooks/{other}/deliveries/{delivery}"), 404)


def test_a_viewer_reads_and_a_developer_changes(caller: Make, made: dict[str, Any]) -> None:
    viewer, developer, path = caller("viewer"), caller("developer"), f"/api/webhooks/{made['id']}"
    for method, rest in PATHS[:7]:
        arguments = () if method in ("get", "delete") else (_body(rest),)
        status = getattr(viewer, method)(path + rest, *arguments).status_code
        assert status == (200 if method == "get" else 403), (method, rest)
    assert error(viewer.post("/api/webhooks", NEW), 403)["code"] == "permission_denied"
    for who, url in ((viewer, "https://example.org"), (developer, NEW["url"])):
        assert who.get(path).json()["url"] == who.get("/api/webhooks").json()["data"][0]["url"] == url
    assert developer.post("/api/webhooks", NEW).status_code == 201
    assert developer.patch(path, {"description": "x"}).status_code == 200
