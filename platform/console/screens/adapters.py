"""Adapters: everybody's at the platform; at a tenant its own, each with its versions."""

from __future__ import annotations

from django.db.models import OuterRef, Q, QuerySet, Subquery
from django.http import HttpRequest, HttpResponse

from console.confirm import confirm
from console.limit_words import quotas
from console.listing import listing, searched
from console.pages import At, page
from console.place import Place, TenantPlace
from console.render import render
from console.screens.workers import to_be_shown
from fleet import looks
from tenants import adapter_quotas, adapter_shares, adapters, releases
from tenants.callers import Role
from tenants.models import Adapter, AdapterVersion

_UNDECIDED = (AdapterVersion.State.PENDING, AdapterVersion.State.CHECKED)


@page("adapters", "adapters")
def list_adapters(request: HttpRequest, place: Place) -> HttpResponse:
    rows: QuerySet[Adapter] = place.rows(Adapter).select_related("tenant", "base_model", "current", "canary")
    query = searched(request)
    if query and place.tenant is None:
        rows = rows.filter(Q(name__icontains=query) | Q(tenant__slug=query.partition("/")[0]))
        if "/" in query:
            rows = rows.filter(name__startswith=query.partition("/")[2])
    elif query:
        rows = rows.filter(Q(name__icontains=query) | Q(base_model__name=query))
    newest = AdapterVersion.objects.unscoped().filter(adapter=OuterRef("pk")).order_by("-number")
    rows = rows.annotate(
        newest=Subquery(newest.values("number")[:1]), newest_state=Subquery(newest.values("state")[:1])
    )
    if place.tenant is None:
        return render(request, place, "console/adapters.html", {"listing": listing(request, rows)})
    context = {
        "listing": listing(request, rows, name="name", order="name"),
        "quotas": quotas(place.tenant),
        "uploads": adapter_quotas.open_uploads(place.tenant),
    }
    return render(request, place, "console/adapters.html", context)


@page("adapters/<str:name>", "adapter", at=At.TENANT)
def show_adapter(request: HttpRequest, place: TenantPlace, name: str) -> HttpResponse:
    adapter = adapters.find(place.tenant, name)
    versions = adapter.versions.select_related("activation")
    shown = listing(request, versions, name="number", order="-number")
    where = looks.resident(looks.sampled())
    ready = versions.filter(pk__in=[version.pk for version in shown.items], state=AdapterVersion.State.READY)
    told = set(to_be_shown(place, ready).values_list("pk", flat=True))
    for version in shown.items:
        version.workers = where.get(version.digest, []) if version.pk in told else []
    context = {
        "adapter": adapter,
        "listing": shown,
        "undecided": any(version.state in _UNDECIDED for version in shown.items),
        "back_to": releases.before(adapter),
        "shares": adapter_shares.shares(adapter).count(),
        "comparable": len(shown.items) > 1 or not shown.first,
    }
    return render(request, place, "console/adapter.html", context)


@page("adapters/<str:name>/delete", "adapter-delete", at=At.TENANT, role=Role.DEVELOPER, post=True)
def delete_adapter(request: HttpRequest, place: TenantPlace, name: str) -> HttpResponse:
    tenant = place.tenant
    adapter = adapters.find(tenant, name)
    versions = adapter.versions.count()
    effects = [
        f"{versions} {'version goes' if versions == 1 else 'versions go'} with it, the files a day later.",
        f"Requests for {adapter} are refused from then on. The ledger keeps what was billed.",
        "The name is free again; another adapter of that name inherits no share of this one.",
    ]
    effects += [f"It cannot be deleted now: {reason}." for reason in adapters.referring(adapter)]
    return confirm(
        request,
        place,
        lambda: adapters.delete(place.actor, tenant, name),
        title=f"Delete the adapter {adapter}?",
        effects=effects,
        button="Delete it",
        done=f"{adapter} is deleted.",
        back=place.url("adapters"),
        word=name,
    )
