from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect

from console.confirm import confirm
from console.forms import Form, posted
from console.pages import At, page
from console.place import Place, TenantPlace
from console.render import render
from console.templatetags.console import number
from tenants import explorer, payloads
from tenants.callers import Role
from tenants.models import InferenceRequest, Payload, PayloadStoring


class _StoringForm(Form):
    days = forms.IntegerField(
        label="Keep each for (days)",
        min_value=1,
        max_value=payloads.MOST_DAYS,
        help_text=f"1 to {payloads.MOST_DAYS}; then it is deleted. A shorter time counts for what is stored already.",
    )
    operators_may_read = forms.BooleanField(
        required=False,
        label="The platform's operators may read them",
        help_text="To help you with a fault, batches' files included. Each time one does, it is in your audit log.",
    )


@page("settings/payloads", "settings-payloads", at=At.TENANT, role=Role.OWNER, post=True)
def settings_payloads(request: HttpRequest, place: TenantPlace) -> HttpResponse:
    tenant = place.tenant
    storing = payloads.storing_of(tenant)
    initial = {"days": 7} if storing is None else storing.__dict__
    form = _StoringForm(posted(request), initial=initial)

    def turn_on(cleaned: dict[str, Any]) -> PayloadStoring:
        return payloads.turn_on(place.actor, tenant, **cleaned)

    if request.method == "POST" and form.carry_out(turn_on):
        messages.success(request, f"Prompts and answers are stored for {form.result.days} days each.")
        return HttpResponseRedirect(place.url("settings-payloads"))
    context = {"form": form, "storing": storing, "decides": place.operator is None}
    return render(request, place, "console/payloads.html", context)


@page("settings/payloads/off", "settings-payloads-off", at=At.TENANT, role=Role.OWNER, post=True)
def settings_payloads_off(request: HttpRequest, place: TenantPlace) -> HttpResponse:
    tenant = place.tenant
    return confirm(
        request,
        place,
        lambda: payloads.turn_off(place.actor, tenant),
        title="Store no prompts and answers any more?",
        effects=[
            _deleted(payloads.stored(tenant)),
            "Requests themselves, their times and their bills stay.",
        ],
        button="Stop and delete",
        done="Nothing is stored any more, and what was is deleted.",
        back=place.url("settings-payloads"),
    )


@page("requests/<str:request_id>/payload", "request-payload", role=Role.DEVELOPER)
def request_payload(request: HttpRequest, place: Place, request_id: str) -> HttpResponse:
    row = explorer.request_of(place.tenant, request_id)
    context: dict[str, Any] = {"row": row, "payload": None}
    if of_request(place, row) == "stored":
        context["payload"] = payloads.read(place.actor, row.tenant, request_id)
        context["cut"] = _cut(context["payload"])
    return render(request, place, "console/request_payload.html", context)


def of_request(place: Place, row: InferenceRequest) -> str:
    """What can be said of a request's payload here: ``stored``, ``missing`` (it came before, or is over), ``off``, or
    ``forbidden`` to whoever looks.
    """
    storing = payloads.storing_of(row.tenant)
    if storing is None:
        return "off"
    if not place.may(Role.DEVELOPER) or (place.operator is not None and not storing.operators_may_read):
        return "forbidden"
    return "stored" if payloads.is_stored(storing, row) else "missing"


def _deleted(count: int) -> str:
    if count == 0:
        return "No request's prompt and answers are stored now, so none are deleted."
    whose = "1 request's prompt and answers" if count == 1 else f"{number(count)} requests' prompts and answers"
    return f"{whose} are deleted at once, and cannot be brought back."


def _cut(payload: Payload) -> dict[str, int]:
    """How many characters of each are not stored."""
    prompt = sum(len(message["content"]) for message in payload.prompt)
    answers = sum(map(len, payload.answers))
    return {"prompt": payload.prompt_characters - prompt, "answers": payload.answer_characters - answers}
