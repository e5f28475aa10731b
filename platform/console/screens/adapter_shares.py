"""Who else may use an adapter, and what others let this account use."""

from __future__ import annotations

from uuid import UUID

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect

from console.confirm import confirm
from console.forms import Form, posted
from console.listing import listing, searched
from console.pages import At, page
from console.place import TenantPlace
from console.render import render
from tenants import adapter_shares, adapters
from tenants.callers import Role
from tenants.errors import NotFound


@page("adapters/<str:name>/shares", "adapter-shares", at=At.TENANT)
def list_shares(request: HttpRequest, place: TenantPlace, name: str) -> HttpResponse:
    adapter = adapters.find(place.tenant, name)
    rows = adapter_shares.shares(adapter).select_related("tenant")
    query = searched(request)
    if query:
        rows = rows.filter(tenant__slug__startswith=query)
    context = {"adapter": adapter, "listing": listing(request, rows)}
    return render(request, place, "console/adapter_shares.html", context)


class _ShareForm(Form):
    account_id = forms.UUIDField(
        label="Id of the account",
        help_text="The other account finds it on its page Account, and tells you.",
        widget=forms.TextInput(attrs={"autocomplete": "off", "spellcheck": "false"}),
        error_messages={"invalid": "This is no account's id: it looks like 0192f0c1-2a7b-7c3d-8e4f-5a6b7c8d9e0f."},
    )


@page("adapters/<str:name>/share", "adapter-share", at=At.TENANT, role=Role.OWNER, post=True)
def share(request: HttpRequest, place: TenantPlace, name: str) -> HttpResponse:
    tenant = place.tenant
    adapter = adapters.find(tenant, name)
    form = _ShareForm(posted(request))
    if request.method == "POST" and form.carry_out(
        lambda sent: adapter_shares.share(place.actor, tenant, name, sent["account_id"])
    ):
        messages.success(request, f"{form.result.tenant} may use {adapter} now.")
        return HttpResponseRedirect(place.url("adapter-shares", name))
    context = {"adapter": adapter, "form": form}
    return render(request, place, "console/adapter_share.html", context)


@page(
    "adapters/<str:name>/shares/<uuid:receiver>/withdraw",
    "adapter-share-withdraw",
    at=At.TENANT,
    role=Role.OWNER,
    post=True,
)
def withdraw(request: HttpRequest, place: TenantPlace, name: str, receiver: UUID) -> HttpResponse:
    tenant = place.tenant
    adapter = adapters.find(tenant, name)
    found = adapter_shares.shares(adapter).select_related("tenant").filter(tenant=receiver).first()
    if found is None:
        raise NotFound("share", str(receiver))
    return confirm(
        request,
        place,
        lambda: adapter_shares.withdraw(place.actor, tenant, name, receiver),
        title=f"Take {adapter} back from {found.tenant}?",
        effects=[
            f"The next request of {found.tenant} for {adapter} is refused; those that run already end as they would.",
            "You can share it again at any time.",
        ],
        button="Take it back",
        done=f"{found.tenant} may not use {adapter} any more.",
        back=place.url("adapter-shares", name),
    )


@page("adapters/-/shared", "adapters-shared", at=At.TENANT)
def list_received(request: HttpRequest, place: TenantPlace) -> HttpResponse:
    """Others' adapters that the account may use; an operator can change which."""
    tenant = place.tenant
    rows = adapter_shares.received(tenant)
    query = searched(request)
    if query:
        rows = rows.filter(model__icontains=query)
    shown = listing(request, rows, name="model", order="model")
    allowed = set(tenant.model_allowances.values_list("base_model_id", flat=True))
    for row in shown.items:
        row.usable = row.adapter.current is not None and row.adapter.base_model_id in allowed
    return render(request, place, "console/adapters_shared.html", {"listing": shown})
