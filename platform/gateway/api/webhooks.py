from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, Any, Literal

from django.http import HttpRequest
from ninja import Schema
from pydantic import ConfigDict, Field

from gateway.api.callers import TenantKey, caller
from gateway.api.moments import Moment
from gateway.api.mutations import ONCE, Body, management_router
from gateway.api.pages import Page, Wanted, page
from tenants import webhooks
from tenants.callers import Caller, Role
from tenants.models import Webhook as Row
from tenants.models import WebhookDelivery

router = management_router("webhooks", TenantKey())
CHANGING = TenantKey(Role.DEVELOPER)

Events = Annotated[
    list[Annotated[str, Field(max_length=64)]],
    Field(max_length=64, description=f"Types of events, or {webhooks.ALL} alone: {', '.join(sorted(webhooks.EVENTS))}"),
]
Url = Annotated[str, Field(max_length=2000, description="Where to POST to: a public https:// address")]
Description = Annotated[str, Field(max_length=200)]
_EXAMPLE: dict[str, Any] = {"url": "https://example.org/hooks/loraplex", "events": ["adapter.ready", "batch.completed"]}


class NewWebhook(Body):
    model_config = ConfigDict(json_schema_extra={"examples": [_EXAMPLE]})

    url: Url
    events: Events
    description: Description = ""


class WebhookChange(Body):
    """Only what is given changes."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"state": "paused"}]})

    url: Url | None = None
    events: Events | None = None
    description: Description | None = None
    state: Literal["active", "paused"] | None = None


class Rotation(Body):
    model_config = ConfigDict(json_schema_extra={"examples": [{"overlap_seconds": 3600}]})

    overlap_seconds: Annotated[
        int, Field(ge=0, le=30 * 86_400, description="How long the former secret signs as well")
    ] = 86_400


AFTER_A_DAY = Rotation()


class Replay(Body):
    model_config = ConfigDict(json_schema_extra={"examples": [{"since": "2030-01-31T00:00:00Z"}]})

    since: Annotated[Moment, Field(description="Events from this time on")]


class Webhook(Schema):
    """``state`` is ``disabled`` after three days of failure: make it ``active`` again once it works."""

    id: str
    url: Annotated[str, Field(description="For viewers its scheme and host only")]
    description: str
    events: list[str]
    state: str
    failing_since: datetime | None
    previous_secret_until: datetime | None
    created_at: datetime


class NewSecret(Schema):
    id: str
    secret: Annotated[str | None, Field(json_schema_extra=ONCE, description="whsec_…: shown now and never again")]
    previous_secret_until: datetime | None


class WebhookCreated(Webhook):
    secret: Annotated[str | None, Field(json_schema_extra=ONCE, description="whsec_…: shown now and never again")]


class Delivery(Schema):
    """One event on its way. ``event_id`` is the header ``webhook-id``, the same at every try."""

    id: str
    event_id: str
    type: str
    state: str
    tries: int
    next_try_at: datetime | None
    created_at: datetime


class Attempt(Schema):
    at: datetime
    milliseconds: int
    status: int | None
    error: str
    answer: Annotated[str, Field(description="The beginning of what the receiver answered")]


class DeliveryInFull(Delivery):
    data: dict[str, Any]
    attempts: list[Attempt]


class Replayed(Schema):
    deliveries: Annotated[int, Field(description="How many are sent again")]


def shown(row: Row, who: Caller) -> Webhook:
    """Viewers are shown only the address's scheme and host."""
    whole = who.role != Role.VIEWER
    return Webhook(**_fields(row) | {"url": row.url if whole else row.host})


def _fields(row: Row) -> dict[str, Any]:
    names = ("url", "description", "events", "state", "failing_since", "created_at")
    fields = {name: getattr(row, name) for name in names}
    return {"id": str(row.pk), "previous_secret_until": row.previous_until, **fields}


def _delivery(row: WebhookDelivery) -> Delivery:
    return Delivery(**_delivery_fields(row))


def _delivery_fields(row: WebhookDelivery) -> dict[str, Any]:
    waiting = row.state == WebhookDelivery.State.PENDING
    return {
        "id": str(row.pk),
        "event_id": str(row.event_id),
        "type": row.event.type,
        "state": row.state,
        "tries": row.tries,
        "next_try_at": row.next_try_at if waiting else None,
        "created_at": row.created_at,
    }


def _in_full(row: WebhookDelivery) -> DeliveryInFull:
    attempts = [
        Attempt(at=a.at, milliseconds=a.milliseconds, status=a.status, error=a.error, answer=a.answer)
        for a in row.attempts.filter(tenant=row.webhook.tenant)
    ]
    return DeliveryInFull(data=row.event.data, attempts=attempts, **_delivery_fields(row))


def _found(request: HttpRequest, webhook_id: str) -> Row:
    return webhooks.find(caller(request).tenant, webhook_id)


@router.get("/api/webhooks", response=Page[Webhook], summary="The account's webhooks, newest first")
def list_webhooks(request: HttpRequest, window: Wanted) -> dict[str, Any]:
    who = caller(request)
    return page(Row.objects.filter(tenant=who.tenant), window, lambda row: shown(row, who), name="pk")


@router.post("/api/webhooks", response={201: WebhookCreated}, auth=CHANGING, summary="Tell an address of events")
def create_webhook(request: HttpRequest, body: NewWebhook) -> tuple[int, WebhookCreated]:
    """Messages are signed as https://www.standardwebhooks.com has it, sent at least once, and tried for three days."""
    who = caller(request)
    row, secret = webhooks.create(who.actor, who.tenant, url=body.url, events=body.events, description=body.description)
    return 201, WebhookCreated(secret=secret.reveal(), **_fields(row))


@router.get("/api/webhooks/{webhook_id}", response=Webhook, summary="One webhook")
def get_webhook(request: HttpRequest, webhook_id: str) -> Webhook:
    return shown(_found(request, webhook_id), caller(request))


@router.patch(
    "/api/webhooks/{webhook_id}", response=Webhook, auth=CHANGING, summary="Change, pause or resume a webhook"
)
def change_webhook(request: HttpRequest, webhook_id: str, body: WebhookChange) -> Webhook:
    row = _found(request, webhook_id)
    webhooks.change(caller(request).actor, row, **body.model_dump(exclude_none=True))
    return shown(row, caller(request))


@router.delete("/api/webhooks/{webhook_id}", response={204: None}, auth=CHANGING, summary="Remove a webhook")
def remove_webhook(request: HttpRequest, webhook_id: str) -> tuple[int, None]:
    webhooks.remove(caller(request).actor, _found(request, webhook_id))
    return 204, None


@router.post(
    "/api/webhooks/{webhook_id}/rotate-secret", response=NewSecret, auth=CHANGING, summary="Replace a webhook's secret"
)
def rotate_webhook_secret(request: HttpRequest, webhook_id: str, body: Rotation = AFTER_A_DAY) -> NewSecret:
    row = _found(request, webhook_id)
    secret = webhooks.rotate_secret(caller(request).actor, row, timedelta(seconds=body.overlap_seconds))
    return NewSecret(id=str(row.pk), secret=secret.reveal(), previous_secret_until=row.previous_until)


@router.post(
    "/api/webhooks/{webhook_id}/test", response={202: Delivery}, auth=CHANGING, summary="Send it a webhook.test"
)
def test_webhook(request: HttpRequest, webhook_id: str) -> tuple[int, Delivery]:
    return 202, _delivery(webhooks.test(caller(request).actor, _found(request, webhook_id)))


@router.post(
    "/api/webhooks/{webhook_id}/replay", response={202: Replayed}, auth=CHANGING, summary="Send again what was given up"
)
def replay_webhook(request: HttpRequest, webhook_id: str, body: Replay) -> tuple[int, Replayed]:
    count = webhooks.replay_failed(caller(request).actor, _found(request, webhook_id), body.since)
    return 202, Replayed(deliveries=count)


@router.get(
    "/api/webhooks/{webhook_id}/deliveries", response=Page[Delivery], summary="What was sent to a webhook, newest first"
)
def list_deliveries(
    request: HttpRequest,
    webhook_id: str,
    window: Wanted,
    state: Literal["pending", "delivered", "failed"] | None = None,
) -> dict[str, Any]:
    row = _found(request, webhook_id)
    return page(webhooks.deliveries(row, state), window, _delivery, name="pk")


@router.get(
    "/api/webhooks/{webhook_id}/deliveries/{delivery_id}",
    response=DeliveryInFull,
    summary="One delivery, with every try of the last two months",
)
def get_delivery(request: HttpRequest, webhook_id: str, delivery_id: str) -> DeliveryInFull:
    return _in_full(webhooks.find_delivery(_found(request, webhook_id), delivery_id))


@router.post(
    "/api/webhooks/{webhook_id}/deliveries/{delivery_id}/replay",
    response={202: Delivery},
    auth=CHANGING,
    summary="Send one delivery again",
)
def replay_delivery(request: HttpRequest, webhook_id: str, delivery_id: str) -> tuple[int, Delivery]:
    row = webhooks.find_delivery(_found(request, webhook_id), delivery_id)
    webhooks.replay(caller(request).actor, row)
    return 202, _delivery(row)
