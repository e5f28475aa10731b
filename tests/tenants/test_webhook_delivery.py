"""Messages reach a real server: signed, again after failure, never twice on purpose and never lost."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from ipaddress import ip_network
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone

from tenants import outbound, webhook_delivery, webhook_secrets, webhooks
from tenants.actors import Actor
from tenants.errors import Conflict, NotConfigured, NotFound
from tenants.keys import Secret
from tenants.models import AuditEntry, Tenant, Webhook, WebhookAttempt, WebhookDelivery, WebhookEvent
from tests.gateway.house import wait_for
from tests.tenants.conftest import make_tenant
from tests.tenants.receiver import Received, Receiver, receiver

ACTOR = Actor("command", "tests")


@pytest.fixture
def server() -> Iterator[Receiver]:
    with receiver() as running:
        yield running


@pytest.fixture(autouse=True)
def _loopback(settings: Any) -> None:
    settings.WEBHOOK_HTTP = True
    settings.WEBHOOK_NETWORKS = (ip_network("127.0.0.0/8"),)


@pytest.fixture
def hooked(acme: Tenant, server: Receiver) -> tuple[Webhook, Secret]:
    return webhooks.create(ACTOR, acme, url=server.url, events=["*"])


def the_delivery(webhook: Webhook) -> WebhookDelivery:
    return WebhookDelivery.objects.get(webhook__tenant=webhook.tenant, webhook=webhook)


def overdue(webhook: Webhook) -> None:
    """As if the wait for the next try were over."""
    deliveries = WebhookDelivery.objects.filter(webhook__tenant=webhook.tenant, webhook=webhook)
    deliveries.update(next_try_at=timezone.now() - timedelta(seconds=1))


def signed_by(secret: Secret, message: Received) -> bool:
    """As the specification has it, and nothing of ours."""
    key = base64.b64decode(secret.reveal().removeprefix("whsec_"))
    content = f"{message.headers['webhook-id']}.{message.headers['webhook-timestamp']}.".encode() + message.body
    expected = "v1," + base64.b64encode(hmac.new(key, content, hashlib.sha256).digest()).decode()
    return expected in message.headers["webhook-signature"].split(" ")


def test_a_message_as_the_convention_has_it(hooked: tuple[Webhook, Secret], server: Receiver) -> None:
    webhook, secret = hooked
    webhooks.emit(webhook.tenant, "key.revoked", {"id": "k1"})
    assert webhook_delivery.deliver() == 1
    (message,) = server.got
    event = WebhookEvent.objects.get(tenant=webhook.tenant)
    body = json.loads(message.body)
    assert (message.path, message.headers["content-type"]) == ("/hook", "application/json")
    assert message.headers["webhook-id"] == str(event.pk)
    assert abs(int(message.headers["webhook-timestamp"]) - time.time()) < 10
    assert (body["type"], body["data"], set(body)) == ("key.revoked", {"id": "k1"}, {"type", "timestamp", "data"})
    assert signed_by(secret, message)
    assert not signed_by(webhook_secrets.generate(), message)
    delivery = the_delivery(webhook)
    attempt = WebhookAttempt.objects.get(tenant=webhook.tenant)
    assert (delivery.state, delivery.tries) == ("delivered", 1)
    assert (attempt.status, attempt.error, attempt.answer) == (200, "", "thanks")
    assert webhook_delivery.deliver() == 0


def test_a_failure_is_tried_again_with_the_same_id_and_bytes(hooked: tuple[Webhook, Secret], server: Receiver) -> None:
    webhook, secret = hooked
    server.status, server.answer = 500, b"\x00oh\xff" + b"x" * 5000
    webhooks.emit(webhook.tenant, "key.revoked", {"id": "k1"})
    before = timezone.now()
    assert webhook_delivery.deliver() == 1
    delivery = the_delivery(webhook)
    waited = (delivery.next_try_at - before).total_seconds()
    assert delivery.state == "pending"
    assert webhook_delivery.BACKOFF[0] <= waited < webhook_delivery.BACKOFF[0] * 1.1 + 5
    attempt = WebhookAttempt.objects.get(tenant=webhook.tenant)
    assert (attempt.status, attempt.error) == (500, "answered with 500")
    assert attempt.answer == ("\ufffdoh\ufffd" + "x" * 5000)[: outbound.KEPT_ANSWER]
    webhook.refresh_from_db()
    assert webhook.failing_since is not None
    server.status, server.answer = 204, b""
    overdue(webhook)
    assert webhook_delivery.deliver() == 1
    first, second = server.got
    assert (first.headers["webhook-id"], first.body) == (second.headers["webhook-id"], second.body)
    assert signed_by(secret, second)
    webhook.refresh_from_db()
    assert (the_delivery(webhook).state, webhook.failing_since) == ("delivered", None)


def test_after_ten_tries_it_is_given_up_and_can_be_replayed(hooked: tuple[Webhook, Secret], server: Receiver) -> None:
    webhook, _ = hooked
    server.status = 503
    webhooks.emit(webhook.tenant, "key.revoked", {})
    for _ in range(len(webhook_delivery.BACKOFF) + 1):
        assert the_delivery(webhook).state == "pending"
        overdue(webhook)
        assert webhook_delivery.deliver() == 1
    assert the_delivery(webhook).state == "failed"
    overdue(webhook)
    assert webhook_delivery.deliver() == 0
    server.status = 200
    assert webhooks.replay_failed(ACTOR, webhook, timezone.now() - timedelta(hours=1)) == 1
    assert webhook_delivery.deliver() == 1
    assert the_delivery(webhook).state == "delivered"
    webhooks.replay(ACTOR, the_delivery(webhook))
    assert webhook_delivery.deliver() == 1
    assert len({message.headers["webhook-id"] for message in server.got}) == 1
    assert len(server.got) == 12


def test_during_an_overlap_both_secrets_sign(hooked: tuple[Webhook, Secret], server: Receiver) -> None:
    webhook, old = hooked
    new = webhooks.rotate_secret(ACTOR, webhook, timedelta(hours=1))
    webhooks.test(ACTOR, webhook)
    webhook_delivery.deliver()
    assert signed_by(old, server.got[0])
    assert signed_by(new, server.got[0])
    Webhook.objects.filter(tenant=webhook.tenant).update(previous_until=timezone.now())
    webhooks.test(ACTOR, webhook)
    webhook_delivery.deliver()
    assert not signed_by(old, server.got[1])
    assert signed_by(new, server.got[1])


def test_a_secret_is_sealed_for_its_webhook_and_moves_to_the_newest_pepper(
    hooked: tuple[Webhook, Secret], server: Receiver, settings: Any
) -> None:
    webhook, secret = hooked
    text = secret.reveal().encode()
    webhook.refresh_from_db()
    assert text not in bytes(webhook.secret)
    other = Webhook(tenant=webhook.tenant)
    with pytest.raises(NotConfigured):
        webhook_secrets.unseal(bytes(webhook.secret), other.pk)
    (version,) = settings.KEY_PEPPERS
    settings.KEY_PEPPERS = {**settings.KEY_PEPPERS, version + 1: b"n" * 32}
    webhooks.test(ACTOR, webhook)
    webhook_delivery.deliver()
    settings.KEY_PEPPERS = {version + 1: b"n" * 32}
    webhooks.test(ACTOR, webhook)
    webhook_delivery.deliver()
    assert [signed_by(secret, message) for message in server.got] == [True, True]
    settings.KEY_PEPPERS = {version + 2: b"m" * 32}
    webhooks.test(ACTOR, webhook)
    webhook_delivery.deliver()
    assert len(server.got) == 2
    last = WebhookAttempt.objects.filter(tenant=webhook.tenant).last()
    assert "KEY_PEPPERS" in last.error


def test_long_failure_disables_and_is_said(hooked: tuple[Webhook, Secret], server: Receiver, acme: Tenant) -> None:
    webhook, _ = hooked
    with receiver() as elsewhere:
        webhooks.create(ACTOR, acme, url=elsewhere.url, events=["webhook.disabled"])
        server.status = 500
        webhooks.emit(acme, "key.revoked", {})
        webhook_delivery.deliver()
        Webhook.objects.filter(tenant=acme, pk=webhook.pk).update(failing_since=timezone.now() - timedelta(days=4))
        overdue(webhook)
        webhook_delivery.deliver()
        webhook.refresh_from_db()
        assert webhook.state == "disabled"
        entry = AuditEntry.objects.get(tenant=acme, action="webhook.disabled")
        assert (entry.actor_kind, entry.subject) == ("system", str(webhook.pk))
        webhook_delivery.deliver()
        assert json.loads(elsewhere.got[0].body)["data"]["id"] == str(webhook.pk)
    overdue(webhook)
    tried = len(server.got)
    assert webhook_delivery.deliver() == 0
    with pytest.raises(Conflict):
        webhooks.test(ACTOR, webhook)
    server.status = 200
    webhooks.change(ACTOR, webhook, state="active")
    assert webhook_delivery.deliver() == 1
    assert len(server.got) == tried + 1


def test_gone_disables_at_once(hooked: tuple[Webhook, Secret], server: Receiver) -> None:
    webhook, _ = hooked
    server.status = 410
    webhooks.test(ACTOR, webhook)
    webhook_delivery.deliver()
    webhook.refresh_from_db()
    assert webhook.state == "disabled"


def test_no_redirect_is_followed(hooked: tuple[Webhook, Secret], server: Receiver) -> None:
    webhook, _ = hooked
    with receiver() as elsewhere:
        server.status, server.headers = 302, {"location": elsewhere.url}
        webhooks.test(ACTOR, webhook)
        webhook_delivery.deliver()
        assert elsewhere.got == []
    assert WebhookAttempt.objects.get(tenant=webhook.tenant).error == "redirects are not followed"


def test_a_server_that_says_nothing_or_too_much_is_left(
    hooked: tuple[Webhook, Secret], server: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    webhook, _ = hooked
    server.answer = b"y" * 50_000_000
    webhooks.test(ACTOR, webhook)
    begun = time.monotonic()
    webhook_delivery.deliver()
    assert time.monotonic() - begun < 5
    assert the_delivery(webhook).state == "delivered"
    monkeypatch.setattr(outbound, "SECONDS", 0.5)
    server.wait.clear()
    webhooks.test(ACTOR, webhook)
    webhook_delivery.deliver()
    attempt = WebhookAttempt.objects.filter(tenant=webhook.tenant).last()
    assert (attempt.status, attempt.error) == (None, "no answer within 0.5 s")
    assert 400 < attempt.milliseconds < 3000


@pytest.mark.django_db(transaction=True)
def test_two_deliverers_send_each_message_once(server: Receiver) -> None:
    webhook, _ = webhooks.create(ACTOR, make_tenant("acme"), url=server.url, events=["*"])
    for number in range(60):
        webhooks.emit(webhook.tenant, "key.revoked", {"number": number})
    together = threading.Barrier(3)

    def work() -> None:
        together.wait()
        webhook_delivery.deliver(60.0)
        connection.close()

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(json.loads(message.body)["data"]["number"] for message in server.got) == list(range(60))


def test_one_tenants_flood_leaves_room_for_others(acme: Tenant, server: Receiver) -> None:
    flood, _ = webhooks.create(ACTOR, acme, url=server.url, events=["*"])
    quiet, _ = webhooks.create(ACTOR, make_tenant("quiet"), url=server.url + "?quiet", events=["*"])
    for _ in range(100):
        webhooks.emit(acme, "key.revoked", {})
    webhooks.emit(quiet.tenant, "key.revoked", {})
    webhook_delivery._claim()
    claimed = WebhookDelivery.objects.unscoped().filter(tries=1)
    assert claimed.filter(webhook=flood).count() == 8
    assert claimed.filter(webhook=quiet).count() == 1


DELIVERER = """
import os, django
django.setup()
from ipaddress import ip_network
from django.conf import settings
settings.WEBHOOK_HTTP, settings.WEBHOOK_NETWORKS = True, (ip_network("127.0.0.0/8"),)
from tenants.webhook_delivery import deliver
deliver()
"""


@pytest.mark.django_db(transaction=True)
def test_a_deliverer_killed_before_it_knows_of_success_sends_again(server: Receiver) -> None:
    webhook, secret = webhooks.create(ACTOR, make_tenant("acme"), url=server.url, events=["*"])
    webhooks.emit(webhook.tenant, "key.revoked", {})
    server.wait.clear()  # the answer is held back, so that it dies in the middle
    process = subprocess.Popen([sys.executable, "-c", DELIVERER])
    try:
        wait_for(lambda: server.got, 60)
    finally:
        process.kill()
        process.wait()
    server.wait.set()
    assert webhook_delivery.deliver() == 0  # claimed, for a minute
    overdue(webhook)
    assert webhook_delivery.deliver() == 1
    assert the_delivery(webhook).state == "delivered"
    first, second = server.got
    assert first.headers["webhook-id"] == second.headers["webhook-id"]
    assert signed_by(secret, second)


def test_a_webhook_removed_while_it_is_called(hooked: tuple[Webhook, Secret], server: Receiver) -> None:
    webhook, _ = hooked
    webhooks.emit(webhook.tenant, "key.revoked", {})
    (delivery,) = webhook_delivery._claim()
    message = webhook_delivery._message(delivery)
    assert message is not None
    webhooks.remove(ACTOR, webhook)
    webhook_delivery._write_down(message, timezone.now(), outbound.Answer(200, "", "", 1))
    assert not WebhookAttempt.objects.unscoped().exists()


def test_an_answer_that_cannot_be_written_down_keeps_no_other_from_it(
    hooked: tuple[Webhook, Secret], server: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    webhook, _ = hooked
    deliveries = [webhooks.test(ACTOR, webhook) for _ in range(3)]
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF NEW.delivery_id = "
            f"'{deliveries[0].pk}' THEN RAISE 'no more room'; END IF; RETURN NEW; END $$;"
            " CREATE TRIGGER refuse BEFORE INSERT ON tenants_webhookattempt FOR EACH ROW EXECUTE FUNCTION refuse()"
        )
    assert webhook_delivery.deliver() == 3
    for delivery in deliveries:
        delivery.refresh_from_db()
    assert [delivery.state for delivery in deliveries] == ["pending", "delivered", "delivered"]
    assert str(deliveries[0].pk) in caplog.text


def test_a_removed_webhook_is_hidden_at_once_and_cleared_in_small_steps(
    hooked: tuple[Webhook, Secret], monkeypatch: pytest.MonkeyPatch, django_assert_max_num_queries: Any
) -> None:
    monkeypatch.setattr(webhook_delivery, "_AT_ONCE_FORGOTTEN", 4)
    webhook, _ = hooked
    for _ in range(10):
        delivery = webhooks.test(ACTOR, webhook)
        WebhookAttempt.objects.create(tenant=webhook.tenant, delivery=delivery, at=timezone.now(), milliseconds=1)
    kept, _ = webhooks.create(ACTOR, webhook.tenant, url="https://example.org/kept", events=["key.revoked"])
    with django_assert_max_num_queries(6):
        webhooks.remove(ACTOR, webhook)
    assert list(Webhook.objects.filter(tenant=webhook.tenant)) == [kept]
    with pytest.raises(NotFound):
        webhooks.find(webhook.tenant, str(webhook.pk))
    row = Webhook.with_removed.get(tenant=webhook.tenant, pk=webhook.pk)
    assert (row.url, bytes(row.secret), row.previous_secret) == ("", b"", None)
    assert webhook_delivery.deliver() == 0
    assert webhook_delivery.forget(seconds=0) == 0
    assert WebhookDelivery.objects.unscoped().count() == 10
    assert webhook_delivery._delete_some(webhook=webhook) == 4
    assert webhook_delivery.forget() == 1
    assert not WebhookDelivery.objects.unscoped().exists()
    assert not WebhookAttempt.objects.unscoped().exists()
    assert list(Webhook.with_removed.unscoped()) == [kept]


def test_an_address_that_hangs_delays_others_by_no_more_than_its_deadline(
    hooked: tuple[Webhook, Secret], server: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbound, "SECONDS", 1.0)
    webhook, _ = hooked
    server.wait.clear()
    with receiver() as quick:
        other, _ = webhooks.create(ACTOR, make_tenant("globex"), url=quick.url, events=["*"])
        for number in range(8):
            webhooks.emit(webhook.tenant, "key.revoked", {"number": number})
        webhooks.emit(other.tenant, "key.revoked", {})
        begun = time.monotonic()
        assert webhook_delivery.deliver() == 9
        assert time.monotonic() - begun < 4
        assert len(quick.got) == 1
    assert the_delivery(other).state == "delivered"


def test_what_is_old_is_forgotten(hooked: tuple[Webhook, Secret]) -> None:
    webhook, _ = hooked
    for _ in range(2):
        webhooks.emit(webhook.tenant, "key.revoked", {})
    old = WebhookEvent.objects.filter(tenant=webhook.tenant).first()
    WebhookEvent.objects.filter(tenant=webhook.tenant, pk=old.pk).update(created_at=timezone.now() - timedelta(days=61))
    assert webhook_delivery.forget() == 1
    assert WebhookDelivery.objects.filter(webhook__tenant=webhook.tenant).count() == 1
