"""The outbox: an event is told if and only if what it tells of happened."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest
from django.db import connection, transaction

from tenants.keys import generate
from tenants.models import Plan, Tenant, Webhook, WebhookDelivery, WebhookEvent
from tenants.webhooks import emit


def hook(tenant: Tenant, *events: str, **fields: Any) -> Webhook:
    values = {"url": "https://example.org/hook", "secret": b"", "events": list(events or "*")} | fields
    return Webhook.objects.create(tenant=tenant, **values)


def told(webhook: Webhook) -> list[str]:
    return [delivery.event.type for delivery in webhook.deliveries.select_related("event").order_by("id")]


def test_an_event_goes_to_those_who_asked_for_it(acme: Tenant) -> None:
    everything, keys = hook(acme), hook(acme, "key.revoked", "key.expiring")
    paused, disabled = hook(acme, state="paused"), hook(acme, state="disabled")
    stranger = hook(Tenant.objects.create(slug="globex", display_name="Globex", plan=acme.plan))
    emit(acme, "key.revoked", {"id": "k", "at": datetime(2030, 1, 1, tzinfo=UTC), "uuid": uuid4()})
    emit(acme, "adapter.ready", {"name": "acme/pirate"})
    assert told(everything) == ["key.revoked", "adapter.ready"]
    assert told(keys) == ["key.revoked"]
    assert told(paused) == told(disabled) == told(stranger) == []
    assert WebhookEvent.objects.filter(tenant=acme).first().data["at"] == "2030-01-01T00:00:00Z"


def test_nobody_listens_nothing_is_written(acme: Tenant) -> None:
    hook(acme, "key.revoked")
    emit(acme, "adapter.ready", {})
    assert not WebhookEvent.objects.unscoped().exists()


def test_what_did_not_happen_is_not_told(acme: Tenant) -> None:
    webhook = hook(acme)
    with transaction.atomic():
        emit(acme, "adapter.ready", {})
        assert told(webhook) == ["adapter.ready"]
        transaction.set_rollback(True)
    assert told(webhook) == []


def test_an_unknown_type_and_data_that_are_not_json_are_refused_even_where_nobody_listens(acme: Tenant) -> None:
    with pytest.raises(ValueError, match="no type of event"):
        emit(acme, "adapter.readdy", {})
    for data in ({"key": generate().secret}, {"digest": b"x"}):
        with pytest.raises(TypeError):
            emit(acme, "key.revoked", data)


def test_the_same_happening_is_told_once_for_each_type_and_tenant(acme: Tenant) -> None:
    webhook = hook(acme)
    for type in ("budget.soft_reached", "budget.soft_reached", "budget.hard_reached"):
        emit(acme, type, {}, once="2030-01")
    emit(acme, "budget.soft_reached", {}, once="2030-02")
    assert told(webhook) == ["budget.soft_reached", "budget.hard_reached", "budget.soft_reached"]


@pytest.mark.django_db(transaction=True)
def test_of_many_at_once_who_notice_the_same_one_tells() -> None:
    tenant = Tenant.objects.create(slug="acme", display_name="Acme", plan=Plan.objects.create(name="tests"))
    webhook, together = hook(tenant), threading.Barrier(6)

    def notice() -> None:
        together.wait()
        with transaction.atomic():
            emit(tenant, "limit.denied", {}, once="now")
        connection.close()

    threads = [threading.Thread(target=notice) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (WebhookEvent.objects.unscoped().count(), WebhookDelivery.objects.unscoped().count()) == (1, 1)
    assert told(webhook) == ["limit.denied"]
