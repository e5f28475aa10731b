from __future__ import annotations

from typing import Any, ClassVar
from urllib.parse import urlsplit

from django.contrib.postgres.fields import ArrayField
from django.core.serializers.json import DjangoJSONEncoder
from django.db import models
from uuid6 import uuid7

from tenants.models.tenant import Tenant
from tenants.scope import TenantOwned, TenantScoped

REMOVED = "removed"
"""State of a webhook that nobody sees any more; its rows are deleted little by little. No choice of anybody's."""


class _NotRemoved(TenantScoped[Any]):
    def get_queryset(self) -> models.QuerySet[Any]:
        return super().get_queryset().exclude(state=REMOVED)


class Webhook(TenantOwned):
    """An address of the tenant's that is told of events. Secrets are sealed; see :mod:`tenants.webhook_secrets`.

    ``objects`` knows nothing of those that were removed.
    """

    class State(models.TextChoices):
        ACTIVE = "active"
        PAUSED = "paused", "paused by the tenant"
        DISABLED = "disabled", "disabled after long failure"

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="webhooks")
    url = models.CharField(max_length=2000)
    description = models.CharField(max_length=200, blank=True)
    events = ArrayField(models.CharField(max_length=64), help_text="types of events, or * alone for all of them")
    state = models.CharField(max_length=8, choices=State.choices, default=State.ACTIVE)
    secret = models.BinaryField(help_text="sealed")
    previous_secret = models.BinaryField(null=True, help_text="sealed; signs as well until previous_until")
    previous_until = models.DateTimeField(null=True)
    failing_since = models.DateTimeField(null=True, help_text="the first failure after the last success")
    created_at = models.DateTimeField(auto_now_add=True)

    objects: ClassVar[Any] = _NotRemoved()
    with_removed: ClassVar[Any] = TenantScoped()

    class Meta:
        ordering = ("id",)

    def __str__(self) -> str:
        return str(self.id)

    @property
    def host(self) -> str:
        """All of the address that may be shown to whoever cannot change it, ``https://example.org``: many receivers
        know a sender by a token in its path or query.
        """
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


class WebhookEvent(TenantOwned):
    """Something that happened and that at least one webhook wants to know: the outbox, written where it happens."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="webhook_events", db_index=False)
    type = models.CharField(max_length=64)
    data = models.JSONField(encoder=DjangoJSONEncoder)
    once = models.CharField(max_length=200, null=True, help_text="the same thing is told once")  # noqa: DJ001
    created_at = models.DateTimeField(auto_now_add=True, db_index=True)

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=("tenant", "type", "once"), name="webhook_event_once"),
        ]

    def __str__(self) -> str:
        return f"{self.type} {self.id}"


class WebhookDelivery(TenantOwned):
    """One event on its way to one webhook. ``next_try_at`` is in the future while somebody is sending it."""

    class State(models.TextChoices):
        PENDING = "pending"
        DELIVERED = "delivered"
        FAILED = "failed", "given up"

    tenant_path = "webhook__tenant"

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    webhook = models.ForeignKey(Webhook, on_delete=models.CASCADE, related_name="deliveries", db_index=False)
    event = models.ForeignKey(WebhookEvent, on_delete=models.CASCADE, related_name="deliveries")
    state = models.CharField(max_length=9, choices=State.choices, default=State.PENDING)
    tries = models.PositiveSmallIntegerField(default=0, help_text="since the last replay")
    next_try_at = models.DateTimeField()
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        verbose_name_plural = "webhook deliveries"
        indexes: ClassVar = [
            models.Index(fields=("next_try_at",), condition=models.Q(state="pending"), name="delivery_due"),
            models.Index(fields=("webhook", "-id"), name="delivery_by_webhook"),
        ]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=("webhook", "event"), name="event_once_per_webhook"),
        ]

    def __str__(self) -> str:
        return f"{self.event_id} to {self.webhook_id}: {self.state}"


class WebhookAttempt(TenantOwned):
    """How one try of a delivery ended."""

    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="+", db_index=False)
    delivery = models.ForeignKey(WebhookDelivery, on_delete=models.CASCADE, related_name="attempts")
    at = models.DateTimeField()
    milliseconds = models.PositiveIntegerField()
    status = models.PositiveSmallIntegerField(null=True, help_text="of the answer; null: there was none")
    error = models.CharField(max_length=300, blank=True, help_text="why there was none, or why it was no success")
    answer = models.CharField(max_length=1024, blank=True, help_text="the beginning of the answer's body")

    class Meta:
        ordering = ("id",)

    def __str__(self) -> str:
        return f"{self.at:%Y-%m-%d %H:%M:%S} {self.status or self.error}"
