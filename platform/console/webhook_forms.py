"""Forms of a tenant's webhooks. What they may say is :mod:`tenants.webhooks`' to decide."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from django import forms

from console.duration_field import DurationField
from console.edit_form import EditForm
from console.forms import Form
from console.sent_once import OnceForm
from tenants import webhooks
from tenants.models import Webhook
from tenants.webhook_delivery import KEPT

_OVERLAPS = (
    (timedelta(0), "none: it signs nothing from now on"),
    (timedelta(hours=1), "1 hour"),
    (timedelta(hours=24), "24 hours"),
    (timedelta(days=7), "7 days"),
    (webhooks.MOST_OVERLAP, f"{webhooks.MOST_OVERLAP.days} days"),
)
_SINCE = (
    (timedelta(hours=1), "the last hour"),
    (timedelta(days=1), "the last 24 hours"),
    (timedelta(days=7), "the last 7 days"),
    (KEPT, f"the last {KEPT.days} days, which is all that is kept"),
)


class WebhookForm(Form):
    url = forms.CharField(
        label="Address",
        max_length=2000,
        widget=forms.URLInput(attrs={"placeholder": "https://example.org/hooks/loraplex"}),
        help_text="Where to POST to: a public https:// address.",
    )
    description = forms.CharField(max_length=200, required=False, help_text="For the people who read this list.")
    events = forms.MultipleChoiceField(
        label="Tell it of",
        choices=[
            (webhooks.ALL, "everything, and whatever will be told later"),
            *((name, f"{name}: {meaning}") for name, meaning in sorted(webhooks.EVENTS.items())),
        ],
        widget=forms.CheckboxSelectMultiple,
        error_messages={"required": "Choose at least one kind of event."},
    )

    def said(self, cleaned: Mapping[str, Any]) -> dict[str, Any]:
        """As :func:`tenants.webhooks.create` and ``change`` take it. With everything the others are said as well."""
        said = {name: cleaned[name] for name in ("url", "description", "events") if name in cleaned}
        return said | {"events": [webhooks.ALL]} if webhooks.ALL in said.get("events", ()) else said


class NewWebhookForm(WebhookForm, OnceForm):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["events"].initial = [webhooks.ALL]


class ChangeWebhookForm(WebhookForm, EditForm):
    def __init__(self, webhook: Webhook, *args: Any) -> None:
        initial = {"url": webhook.url, "description": webhook.description, "events": webhook.events}
        super().__init__(*args, initial=initial)


class RotateSecretForm(OnceForm):
    aliases = {"overlap_seconds": "overlap"}  # noqa: RUF012 - as in Form

    overlap = DurationField(
        _OVERLAPS,
        label="The present secret signs as well for",
        initial=timedelta(hours=24),
        help_text="Until then a message has two signatures, and a receiver that knows either takes it.",
    )


class ReplayForm(Form):
    since = DurationField(_SINCE, label="What was given up in", initial=timedelta(days=1))
