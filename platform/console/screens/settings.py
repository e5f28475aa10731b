"""Settings: at the platform what its operators set, at a tenant what its owners do."""

from __future__ import annotations

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect

from console.forms import Form, posted
from console.pages import page
from console.place import Place
from console.render import render
from fleet.models import PublicPrefix
from tenants import pricing, provisioning
from tenants.callers import Role
from tenants.models import BaseModel, OperatorKey, Plan, Tenant


@page("settings", "settings", role=Role.OWNER, post=True)
def settings(request: HttpRequest, place: Place) -> HttpResponse:
    if place.tenant is not None:
        return _account(request, place, place.tenant)
    if request.method == "POST":
        return HttpResponseNotAllowed(["GET"])
    priced = pricing.prices().filter(in_force=True, plan=None).values("base_model")
    context = {
        "prices": pricing.prices().filter(in_force=True).count(),
        "unpriced": BaseModel.objects.filter(state=BaseModel.State.ACTIVE).exclude(pk__in=priced),
        "plans": Plan.objects.count(),
        "prefixes": PublicPrefix.objects.count(),
        "keys": OperatorKey.objects.working().count(),
    }
    return render(request, place, "console/settings.html", context)


class _Account(Form):
    display_name = forms.CharField(
        max_length=200, label="Name", help_text="As people read it. The short name in models’ names stays what it is."
    )


def _account(request: HttpRequest, place: Place, tenant: Tenant) -> HttpResponse:
    form = _Account(posted(request), initial={"display_name": tenant.display_name})
    if request.method == "POST" and form.carry_out(
        lambda said: provisioning.change(place.actor, tenant, display_name=said["display_name"])
    ):
        messages.success(request, f"The account is called {tenant.display_name} now.")
        return HttpResponseRedirect(place.url("settings"))
    return render(request, place, "console/settings_tenant.html", {"form": form})
