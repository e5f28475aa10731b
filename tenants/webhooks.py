"""Webhooks: the addresses at which a tenant wants to hear of events, and the one way to tell them.

Delivery is :mod:`tenants.webhook_delivery`'s.

Locks are taken in one order: the webhook's row, then its deliveries'. Whoever takes deliveries without the webhook
(claims, and what deletes them) skips what is locked and never waits.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.core.serializers.json import DjangoJSONEncoder
from django.db import connection, transaction
from django.utils import timezone

from tenants import audit, webhook_secrets
from tenants.actors import Actor
from tenants.errors import Conflict, Invalid, NotFound
from tenants.keys import Secret
from tenants.models import Tenant, Webhook, WebhookDelivery, WebhookEvent
from tenants.models.webhook import REMOVED
from tenants.outbound import check_url

EVENTS = {
    "adapter.ready": "A version of an adapter passed its checks and can answer requests.",
    "adapter.rejected": "A version of an adapter did not pass; data.report says why.",
    "batch.completed": "A batch is finished; its output file is there.",
    "batch.failed": "A batch could not be run; its input was not valid.",
    "batch.expired": "A batch did not finish within its window; what was done is in its output file.",
    "batch.cancelled": "A batch was cancelled and has come to rest.",
    "key.revoked": "A key was revoked, and is refused from now on.",
    "key.expiring": "A key expires within a week.",
    "member.joined": "Somebody accepted an invitation.",
    "member.removed": "Somebody was removed, together with their keys.",
    "budget.soft_reached": "This month's spending reached a soft budget of the tenant, a member or a key.",
    "budget.hard_reached": "What is spent and held this month leaves nothing of a hard budget; requests are refused.",
    "limit.denied": "Requests were refused in the hour that has just ended: how many, for which limits and keys.",
    "tenant.suspended": "The account was suspended; requests are refused.",
    "tenant.resumed": "The account is no longer suspended.",
    "webhook.disabled": "Another of the tenant's webhooks was disabled, since it failed for days.",
    "webhook.test": "Sent on request, to try a webhook.",
}
"""Every type of event and what it means. An event that is not listed cannot be emitted."""

ALL = "*"


MOST_WEBHOOKS = 20
"""Of one tenant."""

MOST_OVERLAP = timedelta(days=30)
_OVERLAP = timedelta(hours=24)
_DESCRIPTION = 200


def emit(tenant: Tenant, type: str, data: Mapping[str, Any], *, once: str | None = None) -> None:
    """Tell the tenant's webhooks that something happened. Call it in the transaction that makes it happen: then the
    event goes out if and only if that commits, at least once, even when every process dies right afterwards.

    Costs one query where no webhook listens. Nothing is sent here, and no broker is asked: a periodic task delivers.

    :param type: one of :data:`EVENTS`.
    :param data: becomes ``data`` of the message: what the API shows of the object, at least its id or name. JSON's
        values, dates, times, UUIDs. No secrets and nothing that the tenant's viewers may not read.
    :param once: a text that is the same for the same happening, where something may notice it twice (a repeated task):
        of two events of one type with the same one, the second is dropped.

    Raises ``ValueError`` for a type that is not listed, ``TypeError`` for data that is not JSON.
    """
    if type not in EVENTS:
        raise ValueError(f"{type!r} is no type of event")
    json.dumps(data, cls=DjangoJSONEncoder)  # also where nobody listens, so that a test finds out
    listeners = Webhook.objects.filter(tenant=tenant, state=Webhook.State.ACTIVE)
    wanted = [hook for hook in listeners if type in hook.events or ALL in hook.events]
    if wanted:
        _send(tenant, type, data, once, _kept([hook.pk for hook in wanted]))


def _kept(webhook_ids: list[UUID]) -> list[UUID]:
    """Those that are still there; they cannot be deleted before the transaction ends. Changing one waits for nobody."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT id FROM tenants_webhook WHERE id = ANY(%s) FOR KEY SHARE", [webhook_ids])
        return [row[0] for row in cursor.fetchall()]


def _send(tenant: Tenant, type: str, data: Mapping[str, Any], once: str | None, hooks: list[UUID]) -> None:
    event = WebhookEvent(tenant=tenant, type=type, data=dict(data), once=once)
    # Another transaction that tells the same is waited for here; if it commits, this one's event is not made.
    WebhookEvent.objects.bulk_create([event], ignore_conflicts=True)
    if once is not None and not WebhookEvent.objects.filter(tenant=tenant, pk=event.pk).exists():
        return
    now = timezone.now()
    WebhookDelivery.objects.bulk_create(WebhookDelivery(webhook_id=id, event=event, next_try_at=now) for id in hooks)


def find(tenant: Tenant, webhook_id: str) -> Webhook:
    """Raises :class:`~tenants.errors.NotFound`, for a stranger's as well."""
    try:
        webhook: Webhook | None = Webhook.objects.filter(tenant=tenant, pk=UUID(webhook_id)).first()
    except ValueError:
        webhook = None
    if webhook is None:
        raise NotFound("webhook", webhook_id)
    return webhook


def deliveries(webhook: Webhook, state: str | None = None) -> Any:
    """What was sent to the webhook or waits for it, with its events; only in this ``state`` where one is given."""
    rows = WebhookDelivery.objects.filter(webhook__tenant=webhook.tenant, webhook=webhook).select_related("event")
    return rows if state is None else rows.filter(state=state)


def find_delivery(webhook: Webhook, delivery_id: str) -> WebhookDelivery:
    """Raises :class:`~tenants.errors.NotFound`."""
    try:
        delivery: WebhookDelivery | None = deliveries(webhook).filter(pk=UUID(delivery_id)).first()
    except ValueError:
        delivery = None
    if delivery is None:
        raise NotFound("delivery", delivery_id)
    return delivery


def _lock(webhook: Webhook) -> None:
    """Bring it up to date; until the transaction ends nobody else changes it. Before any lock on its deliveries.

    Raises :class:`~tenants.errors.NotFound` if it was removed meanwhile.
    """
    tenant = webhook.tenant
    try:
        webhook.refresh_from_db(
            from_queryset=Webhook.objects.filter(tenant=tenant).select_for_update(of=("self",), no_key=True)
        )
    except Webhook.DoesNotExist:
        raise NotFound("webhook", str(webhook.pk)) from None
    webhook.tenant = tenant


@transaction.atomic
def create(
    actor: Actor, tenant: Tenant, *, url: str, events: Sequence[str], description: str = ""
) -> tuple[Webhook, Secret]:
    """A new webhook, and its secret: shown once, stored sealed.

    :param events: types of :data:`EVENTS`, or ``*`` alone.

    Raises :class:`~tenants.errors.Invalid`, and :class:`~tenants.errors.Conflict` beyond :data:`MOST_WEBHOOKS`.
    """
    with connection.cursor() as cursor:  # until the end of the transaction: two at once count each other
        cursor.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 7084))", [str(tenant.pk)])
    if Webhook.objects.filter(tenant=tenant).count() >= MOST_WEBHOOKS:
        raise Conflict(f"There are {MOST_WEBHOOKS} webhooks already, which is the most.", code="too_many_webhooks")
    webhook, secret = Webhook(tenant=tenant), webhook_secrets.generate()
    _set(webhook, url=url, events=events, description=description)
    webhook.secret = webhook_secrets.seal(secret, webhook.pk)
    webhook.save()
    audit.record(actor, "webhook.created", str(webhook.pk), tenant=tenant, after=_audited(webhook))
    return webhook, secret


@transaction.atomic
def change(
    actor: Actor,
    webhook: Webhook,
    *,
    url: str | None = None,
    events: Sequence[str] | None = None,
    description: str | None = None,
    state: str | None = None,
) -> None:
    """Change what is given. ``state``: ``active`` or ``paused``. Made active again, it goes on with what waits for it;
    what happened while it was not active is not told. Raises :class:`~tenants.errors.Invalid`.
    """
    _lock(webhook)
    before = _audited(webhook)
    _set(webhook, url=url, events=events, description=description)
    if state is not None:
        if state not in (Webhook.State.ACTIVE, Webhook.State.PAUSED):
            raise Invalid("state has to be active or paused.", "state")
        if state == Webhook.State.ACTIVE != webhook.state:
            webhook.failing_since = None
        webhook.state = state
    webhook.save(update_fields=["url", "events", "description", "state", "failing_since"])
    audit.record(
        actor, "webhook.changed", str(webhook.pk), tenant=webhook.tenant, before=before, after=_audited(webhook)
    )


@transaction.atomic
def rotate_secret(actor: Actor, webhook: Webhook, overlap: timedelta = _OVERLAP) -> Secret:
    """A new secret, shown once. Until ``overlap`` (at most :data:`MOST_OVERLAP`) is over, the present one signs too."""
    if not timedelta(0) <= overlap <= MOST_OVERLAP:
        raise Invalid(f"The overlap has to be between 0 and {MOST_OVERLAP.days} days.", "overlap_seconds")
    _lock(webhook)
    secret = webhook_secrets.generate()
    webhook.previous_secret = webhook.secret if overlap else None
    webhook.previous_until = timezone.now() + overlap if overlap else None
    webhook.secret = webhook_secrets.seal(secret, webhook.pk)
    webhook.save(update_fields=["secret", "previous_secret", "previous_until"])
    after = {"previous_until": webhook.previous_until}
    audit.record(actor, "webhook.secret_rotated", str(webhook.pk), tenant=webhook.tenant, after=after)
    return secret


@transaction.atomic
def remove(actor: Actor, webhook: Webhook) -> None:
    """It is gone, with what waits for it and its log, however much that is: the rows themselves are deleted later.

    Raises :class:`~tenants.errors.NotFound` if somebody else has just removed it.
    """
    _lock(webhook)
    audit.record(actor, "webhook.removed", str(webhook.pk), tenant=webhook.tenant, before=_audited(webhook))
    webhook.state, webhook.url = REMOVED, ""
    webhook.secret, webhook.previous_secret, webhook.previous_until = b"", None, None
    webhook.save(update_fields=["state", "url", "secret", "previous_secret", "previous_until"])


@transaction.atomic
def test(actor: Actor, webhook: Webhook) -> WebhookDelivery:
    """Send a ``webhook.test`` to this webhook alone. Raises :class:`~tenants.errors.Conflict` if it is not active."""
    _lock(webhook)
    _require_active(webhook)
    event = WebhookEvent.objects.create(tenant=webhook.tenant, type="webhook.test", data={"webhook": str(webhook.pk)})
    delivery = WebhookDelivery.objects.create(webhook=webhook, event=event, next_try_at=timezone.now())
    audit.record(actor, "webhook.tested", str(webhook.pk), tenant=webhook.tenant, after={"delivery": delivery.pk})
    return delivery


@transaction.atomic
def replay(actor: Actor, delivery: WebhookDelivery) -> None:
    """Send it again, whatever became of it, under the same ``webhook-id``, and with all tries before it.

    Raises :class:`~tenants.errors.NotFound` if it was forgotten meanwhile.
    """
    webhook = delivery.webhook
    _lock(webhook)
    _require_active(webhook)
    if not _again(WebhookDelivery.objects.filter(webhook__tenant=webhook.tenant, pk=delivery.pk)):
        raise NotFound("delivery", str(delivery.pk))
    delivery.refresh_from_db(fields=["state", "tries", "next_try_at"])
    _record_replay(actor, webhook, {"delivery": delivery.pk})


@transaction.atomic
def replay_failed(actor: Actor, webhook: Webhook, since: datetime) -> int:
    """Send again what was given up, of all events since then. Returns how many."""
    _lock(webhook)
    _require_active(webhook)
    failed = WebhookDelivery.objects.filter(webhook__tenant=webhook.tenant, webhook=webhook, created_at__gte=since)
    count = _again(failed.filter(state=WebhookDelivery.State.FAILED))
    _record_replay(actor, webhook, {"since": since, "deliveries": count})
    return count


def _again(deliveries: Any) -> int:
    count: int = deliveries.update(state=WebhookDelivery.State.PENDING, tries=0, next_try_at=timezone.now())
    return count


def _record_replay(actor: Actor, webhook: Webhook, after: dict[str, Any]) -> None:
    audit.record(actor, "webhook.replayed", str(webhook.pk), tenant=webhook.tenant, after=after)


def _require_active(webhook: Webhook) -> None:
    if webhook.state != Webhook.State.ACTIVE:
        raise Conflict(f"The webhook is {webhook.state}; make it active first.", "state", "webhook_not_active")


def _set(webhook: Webhook, *, url: str | None, events: Sequence[str] | None, description: str | None) -> None:
    if url is not None:
        check_url(url)
        webhook.url = url
    if events is not None:
        webhook.events = _checked_events(events)
    if description is not None:
        if len(description) > _DESCRIPTION or "\0" in description:
            raise Invalid(
                f"description has to have at most {_DESCRIPTION} characters, none of them NUL.", "description"
            )
        webhook.description = description


def _checked_events(events: Sequence[str]) -> list[str]:
    unknown = [event for event in events if event not in EVENTS and event != ALL]
    if unknown:
        raise Invalid(f"events: there is no {unknown[0][:64]!r}; there are {', '.join(sorted(EVENTS))}.", "events")
    if not events or (ALL in events and len(events) > 1):
        raise Invalid(f"events has to list types of events, or {ALL} alone.", "events")
    return sorted(set(events))


def _audited(webhook: Webhook) -> dict[str, Any]:
    """Without the address's query, which may hold a secret of the receiver's."""
    shown = audit.snapshot(webhook, ("description", "events", "state"))
    return {"url": webhook.url.partition("?")[0], **shown}
