"""Two at one webhook: nobody's change is lost, it is removed once, and nobody fails for another's removal."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.utils import timezone

from tenants import webhook_delivery, webhook_secrets, webhooks
from tenants.actors import Actor
from tenants.errors import Conflict, NotFound
from tenants.keys import Secret
from tenants.models import AuditEntry, Plan, Tenant, Webhook, WebhookAttempt, WebhookDelivery, WebhookEvent
from tenants.outbound import Answer

ACTOR = Actor("command", "tests")
pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def hook() -> Webhook:
    tenant = Tenant.objects.create(slug="acme", display_name="Acme", plan=Plan.objects.create(name="tests"))
    webhook, _ = webhooks.create(ACTOR, tenant, url="https://example.org/hook", events=["*"])
    return webhook


def again(webhook: Webhook) -> Webhook:
    """As another process read it."""
    return webhooks.find(webhook.tenant, str(webhook.pk))


def elsewhere(work: Callable[[], Any]) -> Future[Any]:
    """Begun in a thread with a connection of its own."""

    def run() -> Any:
        try:
            return work()
        finally:
            connection.close()

    thread = ThreadPoolExecutor(max_workers=1)
    future = thread.submit(run)
    thread.shutdown(wait=False)
    return future


def end(future: Future[Any]) -> Any:
    """What it returned or raised; it has to be over soon."""
    return future.exception(timeout=20) or future.result()


def together(*works: Callable[[], Any]) -> list[Any]:
    barrier = threading.Barrier(len(works))

    def at_once(work: Callable[[], Any]) -> Callable[[], Any]:
        def run() -> Any:
            barrier.wait()
            return work()

        return run

    return [end(future) for future in [elsewhere(at_once(work)) for work in works]]


def test_a_change_keeps_what_others_changed_since_it_was_read(hook: Webhook) -> None:
    stale = again(hook)
    Webhook.objects.filter(tenant=hook.tenant).update(state="disabled", failing_since=timezone.now())
    webhooks.change(ACTOR, stale, description="new words")
    assert (stale.state, stale.description, again(hook).state) == ("disabled", "new words", "disabled")
    stale = again(hook)
    webhooks.change(ACTOR, hook, state="active", url="https://example.org/moved")
    webhooks.change(ACTOR, stale, events=["key.revoked"])
    now = again(hook)
    assert (now.state, now.url, now.events) == ("active", "https://example.org/moved", ["key.revoked"])
    entry = AuditEntry.objects.filter(tenant=hook.tenant, action="webhook.changed").order_by("id").last()
    assert (set(entry.before), set(entry.after)) == ({"events"}, {"events"})


def test_two_rotations_at_once_leave_both_new_secrets_signing(hook: Webhook) -> None:
    copies = again(hook), again(hook)
    answered = together(*(lambda copy=copy: webhooks.rotate_secret(ACTOR, copy) for copy in copies))
    now = again(hook)
    signing = {webhook_secrets.unseal(bytes(sealed), now.pk).reveal() for sealed in (now.secret, now.previous_secret)}
    assert {secret.reveal() for secret in answered if isinstance(secret, Secret)} == signing


def test_what_was_paused_meanwhile_is_neither_tried_nor_replayed(hook: Webhook) -> None:
    delivery = webhooks.test(ACTOR, hook)
    stale, theirs = again(hook), webhooks.find_delivery(again(hook), str(delivery.pk))
    webhooks.change(ACTOR, hook, state="paused")
    for attempt in (
        lambda: webhooks.test(ACTOR, stale),
        lambda: webhooks.replay(ACTOR, theirs),
        lambda: webhooks.replay_failed(ACTOR, again(hook), timezone.now() - timedelta(hours=1)),
    ):
        with pytest.raises(Conflict):
            attempt()


def test_of_many_who_remove_it_one_does(hook: Webhook) -> None:
    copies = [again(hook) for _ in range(4)]
    ends = together(*(lambda copy=copy: webhooks.remove(ACTOR, copy) for copy in copies))
    assert ends.count(None) == 1
    assert [type(error) for error in ends if error is not None] == [NotFound] * 3
    assert AuditEntry.objects.filter(tenant=hook.tenant, action="webhook.removed").count() == 1
    with pytest.raises(NotFound):
        webhooks.change(ACTOR, hook, description="too late")


def claimed(hook: Webhook) -> webhook_delivery._Message:
    webhooks.emit(hook.tenant, "key.revoked", {})
    [delivery] = webhook_delivery._claim()
    message = webhook_delivery._message(delivery)
    assert message is not None
    return message


@pytest.mark.parametrize("status", [200, 410, 500])
def test_removed_between_the_answer_and_its_writing_down(hook: Webhook, status: int) -> None:
    message, answer = claimed(hook), Answer(status, "", "", 1)
    with transaction.atomic():
        webhooks.remove(ACTOR, hook)
        writing = elsewhere(lambda: webhook_delivery._write_down(message, timezone.now(), answer))
        time.sleep(0.3)
        assert not writing.done()  # it waits for this transaction, holding nothing that this one needs
        WebhookDelivery.objects.unscoped().filter(pk=message.delivery).update(tries=5)
    assert end(writing) is None
    assert not WebhookAttempt.objects.unscoped().exists()


def test_removed_and_cleared_while_its_answer_is_being_written_down(hook: Webhook) -> None:
    message = claimed(hook)
    with transaction.atomic():
        webhook_delivery._write_down(message, timezone.now(), Answer(500, "", "", 1))
        removing = elsewhere(lambda: webhooks.remove(ACTOR, again(hook)))
        time.sleep(0.3)
        assert not removing.done()
    assert end(removing) is None
    assert webhook_delivery.forget() == 1
    assert not WebhookAttempt.objects.unscoped().exists()


def test_removed_and_cleared_while_an_event_is_told(hook: Webhook) -> None:
    with transaction.atomic():
        webhooks.emit(hook.tenant, "key.revoked", {})
        assert end(elsewhere(lambda: webhooks.remove(ACTOR, again(hook)))) is None
        assert end(elsewhere(webhook_delivery.forget)) == 0
    assert webhook_delivery.forget() == 1
    assert not WebhookDelivery.objects.unscoped().exists()
    assert not Webhook.with_removed.unscoped().exists()


def test_what_is_old_but_being_written_down_is_left_for_the_next_time(hook: Webhook) -> None:
    message = claimed(hook)
    WebhookEvent.objects.filter(tenant=hook.tenant).update(created_at=timezone.now() - timedelta(days=61))
    with transaction.atomic():
        webhook_delivery._write_down(message, timezone.now(), Answer(200, "", "", 1))
        assert end(elsewhere(webhook_delivery.forget)) == 0
    assert webhook_delivery.forget() == 1
    webhook_delivery._write_down(message, timezone.now(), Answer(200, "", "", 1))  # nothing to write it to
    assert not WebhookAttempt.objects.unscoped().exists()
