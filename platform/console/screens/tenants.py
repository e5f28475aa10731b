from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse

from console.forms import posted
from console.listing import listing, searched
from console.pages import At, page
from console.place import Place
from console.render import render
from console.tenant_forms import NewTenant
from tenants import base_models, plans, provisioning, roster
from tenants.models import BaseModel, Plan, Tenant

_STATES = [str(state) for state in Tenant.State]


@page("tenants", "tenants", at=At.PLATFORM)
def tenants(request: HttpRequest, place: Place) -> HttpResponse:
    state = request.GET.get("state") if request.GET.get("state") in _STATES else None
    names = plans.names()
    plan = request.GET.get("plan") if request.GET.get("plan") in names else None
    rows = roster.rows(state=state, plan=plan, search=searched(request) or None)
    context = {
        "listing": listing(request, rows, name="slug", order="slug"),
        "states": _STATES,
        "state": state,
        "plans": names,
        "plan": plan,
        "filtered": bool(state or plan or searched(request)),
    }
    return render(request, place, "console/tenants.html", context)


@page("tenants/new", "account-new", at=At.PLATFORM, post=True)
def new(request: HttpRequest, place: Place) -> HttpResponse:
    first = BaseModel.objects.filter(state=BaseModel.State.ACTIVE).order_by("pk").first()
    initial = {"plan": Plan.STANDARD, "models": [] if first is None else [first.name]}
    form = NewTenant(posted(request), initial=initial)

    def create(data: dict[str, Any]) -> Tenant:
        return provisioning.create(
            place.actor,
            data["slug"],
            display_name=data["display_name"],
            plan=plans.find(data["plan"], "plan"),
            weight=data["weight"],
            base_models=[base_models.find(name, "models") for name in data["models"]],
        )

    if request.method == "POST" and form.carry_out(create):
        messages.success(request, f"{form.result.display_name} is there. Invite its first owner, or issue a key.")
        return HttpResponseRedirect(reverse("console:tenant-account", args=(form.result.slug,)))
    context = {"form": form, "title": "New account", "button": "Create it", "back": place.url("tenants")}
    return render(request, place, "console/form_page.html", context)
