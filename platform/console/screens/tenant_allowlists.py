"""Which base models and whose adapters a tenant may use: operators say."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse

from console.confirm import confirm
from console.forms import posted
from console.pages import At, page
from console.place import Place
from console.render import render
from console.screens.tenant_changes import account_url
from console.tenant_forms import AllowAdapter, AllowModel
from tenants import adapters, allowlists, base_models, provisioning
from tenants.errors import NotFound
from tenants.models import Adapter, AdapterAllowance, Tenant


@page("tenants/<slug:slug>/models", "account-models", at=At.PLATFORM, post=True)
def allow_model(request: HttpRequest, place: Place, slug: str) -> HttpResponse:
    tenant = provisioning.find(slug)
    form = AllowModel(tenant, posted(request))

    def act(data: dict[str, Any]) -> None:
        allowlists.allow_model(place.actor, tenant, base_models.find(data["model"], "model"))

    if request.method == "POST" and form.carry_out(act):
        messages.success(request, f"{slug} may use {form.cleaned_data['model']}.")
        return HttpResponseRedirect(account_url(tenant))
    context: dict[str, Any] = {"form": form, "title": f"Let {slug} use a base model", "button": "Allow it"}
    if form.empty:
        context |= {"form": None, "text": f"{slug} may use every base model that there is."}
    else:
        context["text"] = "Alone and under its adapters, from the next request on."
    return render(request, place, "console/form_page.html", context | {"back": account_url(tenant)})


@page("tenants/<slug:slug>/models/<str:name>/withdraw", "account-model-withdraw", at=At.PLATFORM, post=True)
def withdraw_model(request: HttpRequest, place: Place, slug: str, name: str) -> HttpResponse:
    tenant = provisioning.find(slug)
    allowance = tenant.model_allowances.select_related("base_model").filter(base_model=base_models.find(name)).first()
    if allowance is None:
        raise NotFound("base model", name)
    own = Adapter.objects.filter(tenant=tenant, base_model=allowance.base_model).count()
    received = AdapterAllowance.objects.filter(tenant=tenant, adapter__base_model=allowance.base_model).count()
    return confirm(
        request,
        place,
        lambda: allowlists.forbid_model(place.actor, tenant, allowance.base_model),
        title=f"Take {name} from {slug}?",
        effects=[
            "Requests for it are refused from the next one on; it is as if there were no such model.",
            f"So are requests for the adapters made for it, which stay: {own} of its own, {received} shared ones.",
        ],
        button="Take it away",
        done=f"{slug} may not use {name} any more.",
        back=account_url(tenant),
    )


@page("tenants/<slug:slug>/adapters", "account-adapters", at=At.PLATFORM, post=True)
def allow_adapter(request: HttpRequest, place: Place, slug: str) -> HttpResponse:
    tenant = provisioning.find(slug)
    form = AllowAdapter(posted(request))

    def act(data: dict[str, Any]) -> None:
        allowlists.allow_adapter(place.actor, tenant, adapters.named(data["adapter"], "adapter"))

    if request.method == "POST" and form.carry_out(act):
        messages.success(request, f"{slug} may use {form.cleaned_data['adapter']}.")
        return HttpResponseRedirect(_received_url(tenant))
    context = {
        "form": form,
        "title": f"Let {slug} use another account's adapter",
        "text": "As if its owner had shared it: under the owner's name for it. Both accounts' audit logs will say so.",
        "button": "Allow it",
        "back": _received_url(tenant),
    }
    return render(request, place, "console/form_page.html", context)


@page(
    "tenants/<slug:slug>/adapters/<slug:owner>/<str:name>/withdraw",
    "account-adapter-withdraw",
    at=At.PLATFORM,
    post=True,
)
def withdraw_adapter(request: HttpRequest, place: Place, slug: str, owner: str, name: str) -> HttpResponse:
    tenant, adapter = provisioning.find(slug), adapters.named(f"{owner}/{name}")
    if not AdapterAllowance.objects.filter(tenant=tenant, adapter=adapter).exists():
        raise NotFound("share", str(adapter))
    return confirm(
        request,
        place,
        lambda: allowlists.forbid_adapter(place.actor, tenant, adapter),
        title=f"Take {adapter} from {slug}?",
        effects=[
            "Requests for it are refused from the next one on; it is as if there were no such model.",
            f"The adapter itself stays {owner}'s, and others who may use it go on.",
        ],
        button="Take it away",
        done=f"{slug} may not use {adapter} any more.",
        back=_received_url(tenant),
    )


def _received_url(tenant: Tenant) -> str:
    return reverse("console:tenant-adapters-shared", args=(tenant.slug,))
