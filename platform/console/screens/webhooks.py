from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from django.contrib import messages
from django.db.models import Prefetch
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils import timezone

from console.confirm import confirm
from console.forms import posted
from console.listing import listing
from console.pages import At, page
from console.place import Place, TenantPlace
from console.render import render
from console.templatetags.console import number
from console.webhook_forms import ChangeWebhookForm, NewWebhookForm, ReplayForm, RotateSecretForm
from tenants import webhooks as domain
from tenants.callers import Role
from tenants.keys import Secret
from tenants.models import Webhook, WebhookAttempt, WebhookDelivery
from tenants.webhook_delivery import BACKOFF

_STATES = WebhookDelivery.State.values
_COUNTED = 1000
"""Up to which number waiting deliveries are counted: a webhook that is paused for long has very many."""


@page("webhooks", "webhooks", at=At.TENANT)
def webhooks(request: HttpRequest, place: TenantPlace) -> HttpResponse:
    rows = list(place.rows(Webhook).order_by("-pk"))
    whole = place.may(Role.DEVELOPER)
    context = {
        "webhooks": rows,
        "whole": whole,
        "full": len(rows) >= domain.MOST_WEBHOOKS,
        "most": domain.MOST_WEBHOOKS,
    }
    return render(request, place, "console/webhooks.html", context)


@page("webhooks/new", "webhook-new", at=At.TENANT, role=Role.DEVELOPER, post=True)
def webhook_new(request: HttpRequest, place: TenantPlace) -> HttpResponse:
    form = NewWebhookForm(posted(request))

    def create(cleaned: dict[str, Any]) -> tuple[str, Secret]:
        made, secret = domain.create(place.actor, place.tenant, **form.said(cleaned))
        return str(made.pk), secret

    if request.method == "POST" and form.carry_out_once(request, place, create):
        return _shown(request, place, domain.find(place.tenant, form.made), form.result)
    return render(request, place, "console/webhook_form.html", {"form": form, "webhook": None})


@page("webhooks/<str:id>", "webhook", at=At.TENANT)
def webhook(request: HttpRequest, place: TenantPlace, id: str) -> HttpResponse:
    found = domain.find(place.tenant, id)
    state = request.GET.get("state", "")
    attempts = WebhookAttempt.objects.filter(tenant=found.tenant)
    rows = domain.deliveries(found, state if state in _STATES else None)
    rows = rows.prefetch_related(Prefetch("attempts", attempts, to_attr="kept_attempts"))
    shown = listing(request, rows)
    context = {
        "webhook": found,
        "whole": place.may(Role.DEVELOPER),
        "listing": shown,
        "state": state,
        "states": _STATES,
        "follow": _follow(found, shown.items if shown.first else []),
        "rotating": found.previous_until is not None and found.previous_until > timezone.now(),
    }
    return render(request, place, "console/webhook.html", context)


@page("webhooks/<str:id>/change", "webhook-change", at=At.TENANT, role=Role.DEVELOPER, post=True)
def webhook_change(request: HttpRequest, place: TenantPlace, id: str) -> HttpResponse:
    found = domain.find(place.tenant, id)
    form = ChangeWebhookForm(found, posted(request))
    if request.method == "POST" and form.carry_out(
        lambda cleaned: domain.change(place.actor, found, **form.said(cleaned))
    ):
        messages.success(request, "The webhook was changed.")
        return HttpResponseRedirect(place.url("webhook", id))
    return render(request, place, "console/webhook_form.html", {"form": form, "webhook": found})


@page("webhooks/<str:id>/rotate", "webhook-rotate", at=At.TENANT, role=Role.DEVELOPER, post=True)
def webhook_rotate(request: HttpRequest, place: TenantPlace, id: str) -> HttpResponse:
    found = domain.find(place.tenant, id)
    form = RotateSecretForm(posted(request))

    def rotate(cleaned: dict[str, Any]) -> tuple[str, Secret]:
        return str(found.pk), domain.rotate_secret(place.actor, found, cleaned["overlap"])

    if request.method == "POST" and form.carry_out_once(request, place, rotate):
        return _shown(request, place, found, form.result)
    return render(request, place, "console/webhook_rotate.html", {"form": form, "webhook": found})


@page("webhooks/<str:id>/replay", "webhook-replay", at=At.TENANT, role=Role.DEVELOPER, post=True)
def webhook_replay(request: HttpRequest, place: TenantPlace, id: str) -> HttpResponse:
    found = domain.find(place.tenant, id)
    form = ReplayForm(posted(request))

    def replay(cleaned: dict[str, Any]) -> int:
        return domain.replay_failed(place.actor, found, timezone.now() - cleaned["since"])

    if request.method == "POST" and form.carry_out(replay):
        count = form.result
        messages.success(request, f"{number(count)} {'delivery is' if count == 1 else 'deliveries are'} sent again.")
        return HttpResponseRedirect(place.url("webhook", id))
    return render(request, place, "console/webhook_replay.html", {"form": form, "webhook": found})


@page("webhooks/<str:id>/pause", "webhook-pause", at=At.TENANT, role=Role.DEVELOPER, post=True)
def webhook_pause(request: HttpRequest, place: TenantPlace, id: str) -> HttpResponse:
    found = domain.find(place.tenant, id)
    effects = [
        "What happens while it is paused is not told, neither then nor later.",
        f"{_waiting(found)} What waits is kept, and goes out once the webhook is active again.",
    ]
    return confirm(
        request,
        place,
        lambda: domain.change(place.actor, found, state=Webhook.State.PAUSED),
        title="Pause this webhook?",
        button="Pause it",
        done="The webhook is paused.",
        effects=effects,
        back=place.url("webhook", id),
    )


@page("webhooks/<str:id>/resume", "webhook-resume", at=At.TENANT, role=Role.DEVELOPER, post=True)
def webhook_resume(request: HttpRequest, place: TenantPlace, id: str) -> HttpResponse:
    found = domain.find(place.tenant, id)
    return confirm(
        request,
        place,
        lambda: domain.change(place.actor, found, state=Webhook.State.ACTIVE),
        title="Make this webhook active?",
        button="Make it active",
        done="The webhook is active.",
        effects=[_waiting(found) + " What waits goes out at once.", "From now on it is told of what happens."],
        back=place.url("webhook", id),
    )


@page("webhooks/<str:id>/remove", "webhook-remove", at=At.TENANT, role=Role.DEVELOPER, post=True)
def webhook_remove(request: HttpRequest, place: TenantPlace, id: str) -> HttpResponse:
    found = domain.find(place.tenant, id)
    return confirm(
        request,
        place,
        lambda: domain.remove(place.actor, found),
        title="Delete this webhook?",
        button="Delete it",
        done="The webhook is deleted.",
        effects=[
            f"{found.url.partition('?')[0]} is told of nothing any more.",
            f"{_waiting(found)} What waits is not sent.",
            "Its log and its secret are gone. This cannot be undone.",
        ],
        back=place.url("webhooks"),
    )


@page("webhooks/<str:id>/test", "webhook-test", at=At.TENANT, role=Role.DEVELOPER, post=True)
def webhook_test(request: HttpRequest, place: TenantPlace, id: str) -> HttpResponse:
    found = domain.find(place.tenant, id)
    return confirm(
        request,
        place,
        lambda: domain.test(place.actor, found),
        title="Send a test?",
        button="Send it",
        done="A webhook.test is on its way; it stands first among the deliveries.",
        effects=[f"{found.url.partition('?')[0]} gets a message of the type webhook.test, signed like all others."],
        back=place.url("webhook", id),
    )


@page("webhooks/<str:id>/deliveries/<str:delivery_id>", "webhook-delivery", at=At.TENANT)
def webhook_delivery(request: HttpRequest, place: TenantPlace, id: str, delivery_id: str) -> HttpResponse:
    found = domain.find(place.tenant, id)
    delivery = domain.find_delivery(found, delivery_id)
    attempts = WebhookAttempt.objects.filter(tenant=found.tenant, delivery=delivery).order_by("-pk")
    data = json.dumps(delivery.event.data, indent=2, ensure_ascii=False)
    context = {
        "webhook": found,
        "whole": place.may(Role.DEVELOPER),
        "delivery": delivery,
        "data": data,
        "attempts": listing(request, attempts),
        "most_tries": len(BACKOFF) + 1,
        "follow": _follow(found, [delivery]),
    }
    return render(request, place, "console/webhook_delivery.html", context)


@page(
    "webhooks/<str:id>/deliveries/<str:delivery_id>/replay",
    "webhook-delivery-replay",
    at=At.TENANT,
    role=Role.DEVELOPER,
    post=True,
)
def webhook_delivery_replay(request: HttpRequest, place: TenantPlace, id: str, delivery_id: str) -> HttpResponse:
    found = domain.find(place.tenant, id)
    delivery = domain.find_delivery(found, delivery_id)
    return confirm(
        request,
        place,
        lambda: domain.replay(place.actor, delivery),
        title="Send this delivery again?",
        button="Send it again",
        done="It is on its way again.",
        effects=[
            f"{found.url.partition('?')[0]} gets this {delivery.event.type} once more, under the same webhook-id, so "
            "that a receiver can tell that it had it.",
            "It has all its tries before it again.",
        ],
        back=place.url("webhook-delivery", id, delivery_id),
    )


def _waiting(webhook: Webhook) -> str:
    rows = domain.deliveries(webhook, WebhookDelivery.State.PENDING)
    count = rows[:_COUNTED].count()
    if count == _COUNTED:
        return f"At least {number(count)} deliveries wait."
    return {0: "Nothing waits to be delivered.", 1: "1 delivery waits."}.get(count, f"{number(count)} deliveries wait.")


def _follow(webhook: Webhook, deliveries: Sequence[WebhookDelivery]) -> int | None:
    """After how many seconds a page with these looks again; ``None``: nothing of them changes by itself."""
    pending = [each for each in deliveries if each.state == WebhookDelivery.State.PENDING]
    if webhook.state != Webhook.State.ACTIVE or not pending:
        return None
    soon = timezone.now() + timedelta(minutes=1)
    return 2 if any(each.next_try_at <= soon for each in pending) else 30


def _shown(request: HttpRequest, place: Place, webhook: Webhook, secret: Secret | None) -> HttpResponse:
    """The only page that ever has the secret; for a form that was sent twice, the page that says so."""
    context = {"webhook": webhook, "text": None if secret is None else secret.reveal()}
    return render(request, place, "console/webhook_shown.html", context)
