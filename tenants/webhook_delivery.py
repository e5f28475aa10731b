"""Delivery of webhooks: claimed for a minute, sent, written down. Whoever dies in between, the claim runs out and
somebody sends again; so a receiver may see a message twice, with the same ``webhook-id``, and misses none.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import orjson
from django.db import DatabaseError, connection, transaction
from django.utils import timezone

from tenants import actors, audit, webhook_secrets, webhooks
from tenants.errors import NotConfigured
from tenants.models import Webhook, WebhookAttempt, WebhookDelivery, WebhookEvent
from tenants.models.webhook import REMOVED
from tenants.outbound import Answer, Caller, caller

logger = logging.getLogger(__name__)

BACKOFF = (5, 300, 1800, 7200, 18_000, 36_000, 50_400, 72_000, 86_400)
"""Seconds from one try to the next; then it is given up: ten tries in about three days."""

DISABLED_AFTER = timedelta(days=3)
"""A webhook that failed for so long without one success is disabled."""

KEPT = timedelta(days=60)
"""Events and their deliveries; longer than a month, for which an event may be told only once."""

GONE = 410
_AT_ONCE = 64
_OF_ONE_TENANT = 8
_CLAIM_SECONDS = 60
_AT_ONCE_FORGOTTEN = 1000

_CLAIM = """
WITH due AS (
    SELECT d.id, row_number() OVER (PARTITION BY w.tenant_id ORDER BY d.next_try_at, d.id) AS place
      FROM tenants_webhookdelivery d JOIN tenants_webhook w ON w.id = d.webhook_id
     WHERE d.state = 'pending' AND d.next_try_at <= clock_timestamp() AND w.state = 'active'
), claimed AS (
    SELECT d.id FROM tenants_webhookdelivery d
     WHERE d.id IN (SELECT id FROM due WHERE place <= %s ORDER BY place, id LIMIT %s)
       AND d.state = 'pending' AND d.next_try_at <= clock_timestamp()
       FOR UPDATE SKIP LOCKED
)
UPDATE tenants_webhookdelivery d SET next_try_at = clock_timestamp() + make_interval(secs => %s), tries = d.tries + 1
  FROM claimed WHERE d.id = claimed.id
RETURNING d.id
"""


@dataclass(frozen=True, slots=True)
class _Message:
    webhook: UUID
    delivery: UUID
    tries: int
    url: str
    headers: dict[str, str]
    body: bytes


def deliver(seconds: float = 5.0) -> int:
    """Send what is due, a batch at a time, until nothing is or the time is up: other tasks wait for this one, and a
    batch takes as long as its slowest address, at most ``outbound.SECONDS``. Returns how many were tried.
    """
    until, tried = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        claimed = _claim()
        if not claimed:
            break
        messages = [message for delivery in claimed if (message := _message(delivery)) is not None]
        begun = timezone.now()
        for message, answer in zip(messages, asyncio.run(_send(messages)), strict=True):
            _keep(message, begun, answer)
        tried += len(claimed)
    return tried


def _claim() -> list[WebhookDelivery]:
    with connection.cursor() as cursor:
        cursor.execute(_CLAIM, [_OF_ONE_TENANT, _AT_ONCE, _CLAIM_SECONDS])
        ids = [row[0] for row in cursor.fetchall()]
    found = WebhookDelivery.objects.unscoped().filter(pk__in=ids)
    return list(found.exclude(webhook__state=REMOVED).select_related("event", "webhook__tenant"))


def _message(delivery: WebhookDelivery) -> _Message | None:
    webhook, event = delivery.webhook, delivery.event
    try:
        secrets = [webhook_secrets.unseal(bytes(webhook.secret), webhook.pk)]
        until = webhook.previous_until
        if webhook.previous_secret is not None and until is not None and until > timezone.now():
            secrets.append(webhook_secrets.unseal(bytes(webhook.previous_secret), webhook.pk))
    except NotConfigured as error:
        logger.error("webhook %s: %s", webhook.pk, error)
        nothing = _Message(webhook.pk, delivery.pk, delivery.tries, "", {}, b"")
        _keep(nothing, timezone.now(), Answer(None, str(error), "", 0))
        return None
    if webhook_secrets.is_stale(bytes(webhook.secret)):
        _seal_again(webhook)
    body, now = body_of(event), int(time.time())
    headers = {
        "content-type": "application/json",
        "user-agent": "loraplex-webhooks/1",
        "webhook-id": str(event.pk),
        "webhook-timestamp": str(now),
        "webhook-signature": webhook_secrets.signature(secrets, str(event.pk), now, body),
    }
    return _Message(webhook.pk, delivery.pk, delivery.tries, webhook.url, headers, body)


def _seal_again(webhook: Webhook) -> None:
    """Under the newest pepper, unless the secret was rotated meanwhile: so that an old pepper can be given up."""
    sealed = bytes(webhook.secret)
    fresh = webhook_secrets.seal(webhook_secrets.unseal(sealed, webhook.pk), webhook.pk)
    Webhook.objects.filter(tenant=webhook.tenant, pk=webhook.pk, secret=sealed).update(secret=fresh)


def body_of(event: WebhookEvent) -> bytes:
    """The message: the same bytes at every try."""
    return orjson.dumps({"type": event.type, "timestamp": event.created_at, "data": event.data})


async def _send(messages: list[_Message]) -> list[Answer]:
    async with caller() as calls:
        return await asyncio.gather(*(_post(calls, message) for message in messages))


async def _post(calls: Caller, message: _Message) -> Answer:
    return await calls.post(message.url, message.headers, message.body)


def _keep(message: _Message, begun: datetime, answer: Answer) -> None:
    """Write it down; where that fails, the others are written down nevertheless, and this one is sent again."""
    try:
        _write_down(message, begun, answer)
    except DatabaseError:
        logger.exception("delivery %s is not written down, and will be sent again", message.delivery)


@transaction.atomic
def _write_down(message: _Message, begun: datetime, answer: Answer) -> None:
    webhook = Webhook.objects.unscoped().select_for_update(no_key=True).filter(pk=message.webhook).first()
    if webhook is None:  # removed meanwhile
        return
    delivery = WebhookDelivery.objects.unscoped().select_for_update().filter(pk=message.delivery)
    if not delivery.values_list("pk"):  # forgotten meanwhile; exists() would take no lock
        return
    WebhookAttempt.objects.create(
        tenant_id=webhook.tenant_id,
        delivery_id=message.delivery,
        at=begun,
        milliseconds=answer.milliseconds,
        status=answer.status,
        error=answer.error,
        answer=answer.body,
    )
    # Unless somebody else sent it after this claim had run out, or it was asked for again.
    mine = WebhookDelivery.objects.unscoped().filter(pk=message.delivery, state="pending", tries=message.tries)
    if answer.ok:
        mine.update(state=WebhookDelivery.State.DELIVERED)
        if webhook.failing_since is not None:
            webhook.failing_since = None
            webhook.save(update_fields=["failing_since"])
    elif message.tries > len(BACKOFF):
        mine.update(state=WebhookDelivery.State.FAILED)
        _failed(webhook, begun, answer)
    else:
        wait = BACKOFF[message.tries - 1] * random.uniform(1.0, 1.1)  # noqa: S311 - spreads tries, hides nothing
        mine.update(next_try_at=timezone.now() + timedelta(seconds=wait))
        _failed(webhook, begun, answer)


def _failed(webhook: Webhook, at: datetime, answer: Answer) -> None:
    if webhook.failing_since is None:
        webhook.failing_since = at
        webhook.save(update_fields=["failing_since"])
    long = at - webhook.failing_since >= DISABLED_AFTER
    if webhook.state != Webhook.State.ACTIVE or not (long or answer.status == GONE):
        return
    reason = f"it answered with {GONE}" if answer.status == GONE else f"it failed for {DISABLED_AFTER.days} days"
    webhook.state = Webhook.State.DISABLED
    webhook.save(update_fields=["state"])
    after = {"state": webhook.state, "reason": reason, "last_error": answer.error}
    actor = actors.of_task("deliver_webhooks")
    audit.record(actor, "webhook.disabled", str(webhook.pk), tenant=webhook.tenant, after=after)
    data = {"id": webhook.pk, "reason": reason}
    webhooks.emit(webhook.tenant, "webhook.disabled", data)


def forget(seconds: float = 5.0) -> int:
    """Delete what webhooks left that were removed, then events older than :data:`KEPT` with their deliveries, in small
    transactions until nothing is left or the time is up: what remains is the next call's. Returns how many events and
    webhooks.
    """
    until, count = time.monotonic() + seconds, 0
    for webhook_id in Webhook.with_removed.unscoped().filter(state=REMOVED).values_list("pk", flat=True):
        while time.monotonic() < until and _delete_some(webhook=webhook_id):
            pass
        count += _erase(webhook_id)
    events = WebhookEvent.objects.unscoped()
    old = events.filter(created_at__lt=timezone.now() - KEPT).order_by("created_at").values_list("pk", flat=True)
    while time.monotonic() < until and (batch := list(old[:_AT_ONCE_FORGOTTEN])):
        while _delete_some(event__in=batch):
            pass
        deleted, _ = events.filter(pk__in=batch, deliveries=None).delete()
        if not deleted:  # somebody holds their deliveries
            break
        count += deleted
    return count


@transaction.atomic
def _delete_some(**which: Any) -> int:
    """Of these deliveries those that nobody holds, at most a batch. Returns how many."""
    deliveries = WebhookDelivery.objects.unscoped()
    free = deliveries.filter(**which).select_for_update(skip_locked=True)
    batch = list(free.values_list("pk", flat=True)[:_AT_ONCE_FORGOTTEN])
    deliveries.filter(pk__in=batch).delete()
    return len(batch)


@transaction.atomic
def _erase(webhook_id: UUID) -> bool:
    """The row of a removed webhook, once it is nobody's: an event that is just being told may still name it."""
    removed = Webhook.with_removed.unscoped().select_for_update(skip_locked=True)
    webhook = removed.filter(pk=webhook_id, state=REMOVED).first()
    if webhook is None or WebhookDelivery.objects.unscoped().filter(webhook=webhook_id).exists():
        return False
    webhook.delete()
    return True
