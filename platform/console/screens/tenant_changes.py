"""What operators change of a tenant: name, plan, weight, limits, state, and whether it is there."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse

from console.confirm import confirm
from console.forms import posted
from console.limit_fields import limit_changes
from console.pages import At, page
from console.place import Place
from console.render import render
from console.tenant_forms import Reason, TenantChange, limits_form
from tenants import plans, provisioning
from tenants.counted import counted
from tenants.limits import names_for
from tenants.models import Batch, Tenant


def account_url(tenant: Tenant) -> str:
    return reverse("console:tenant-account", args=(tenant.slug,))


@page("tenants/<slug:slug>/change", "account-change", at=At.PLATFORM, post=True)
def change(request: HttpRequest, place: Place, slug: str) -> HttpResponse:
    tenant = provisioning.find(slug)
    now = {"display_name": tenant.display_name, "plan": tenant.plan.name, "weight": tenant.weight}
    form = TenantChange(posted(request), initial=now)

    def act(changed: dict[str, Any]) -> None:
        if "plan" in changed:
            changed["plan"] = plans.find(changed["plan"], "plan")
        provisioning.change(place.actor, tenant, **changed)

    if request.method == "POST" and form.carry_out(act):
        messages.success(request, "Changed. The plan's limits hold from the next request on.")
        return HttpResponseRedirect(account_url(tenant))
    context = {"form": form, "title": f"Change {slug}", "button": "Change it", "back": account_url(tenant)}
    return render(request, place, "console/form_page.html", context)


@page("tenants/<slug:slug>/limits", "account-limits", at=At.PLATFORM, post=True)
def limits(request: HttpRequest, place: Place, slug: str) -> HttpResponse:
    tenant = provisioning.find(slug)
    initial = {name: getattr(tenant, name) for name in names_for(Tenant)}
    form = limits_form(tenant)(posted(request), initial=initial)

    def act(changed: dict[str, Any]) -> None:
        provisioning.change(place.actor, tenant, limits=limit_changes(Tenant, changed))

    if request.method == "POST" and form.carry_out(act):
        messages.success(request, "The limits hold from the next request on.")
        return HttpResponseRedirect(account_url(tenant))
    context = {
        "form": form,
        "title": f"Limits of {slug}",
        "text": f"What is left empty is as the plan {tenant.plan} has it.",
        "button": "Set them",
        "columns": True,
        "back": account_url(tenant),
    }
    return render(request, place, "console/form_page.html", context)


@page("tenants/<slug:slug>/suspend", "account-suspend", at=At.PLATFORM, post=True)
def suspend(request: HttpRequest, place: Place, slug: str) -> HttpResponse:
    tenant, form = provisioning.find(slug), Reason(posted(request))
    running = tenant.requests.running().count()
    keys, members = tenant.api_keys.working().count(), tenant.members.count()
    batches = Batch.objects.filter(tenant=tenant, status__in=Batch.UNFINISHED).count()
    return confirm(
        request,
        place,
        lambda: provisioning.suspend(place.actor, tenant, form.cleaned_data["reason"]),
        title=f"Suspend {slug}?",
        effects=[
            f"{counted(running, 'running request')} of it will end within seconds; what was generated is billed.",
            f"Requests with its {counted(keys, 'key')} are refused. The keys stay, and work again afterwards.",
            f"{counted(members, 'member')} can see and change nothing of it meanwhile.",
            f"{counted(batches, 'unfinished batch', 'unfinished batches')} will wait.",
        ],
        button="Suspend it",
        done=f"{slug} is suspended.",
        back=account_url(tenant),
        form=form,
    )


@page("tenants/<slug:slug>/resume", "account-resume", at=At.PLATFORM, post=True)
def resume(request: HttpRequest, place: Place, slug: str) -> HttpResponse:
    tenant, form = provisioning.find(slug), Reason(posted(request))
    return confirm(
        request,
        place,
        lambda: provisioning.resume(place.actor, tenant, form.cleaned_data["reason"]),
        title=f"Resume {slug}?",
        effects=[
            f"Requests with its {counted(tenant.api_keys.working().count(), 'key')} are taken again from now on.",
            f"{counted(tenant.members.count(), 'member')} can work here again.",
        ],
        button="Resume it",
        done=f"{slug} works again.",
        back=account_url(tenant),
        form=form,
    )


@page("tenants/<slug:slug>/delete", "account-delete", at=At.PLATFORM, post=True)
def delete(request: HttpRequest, place: Place, slug: str) -> HttpResponse:
    tenant = provisioning.find(slug)
    posted = request.method == "POST"
    return confirm(
        request,
        place,
        lambda: provisioning.delete(place.actor, tenant),
        title=f"Delete {slug}?",
        effects=[
            "Only an account that never made a request and has nothing of its own can be deleted: suspend others.",
            f"{counted(tenant.api_keys.count(), 'key')}, {counted(tenant.members.count(), 'membership')} go with it.",
            "The people can still sign in elsewhere, and the audit log stays.",
            "It cannot be undone. The short name is free afterwards.",
        ],
        button="Delete it",
        done=f"{slug} is deleted.",
        back=place.url("tenants") if posted else account_url(tenant),
        word=slug,
    )
