"""Base models and the workers that serve them; at a tenant, those that it may use and where its adapters lie."""

from __future__ import annotations

from collections import Counter
from typing import Any

from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse

from console.listing import listing, searched
from console.pages import At, page
from console.place import Place, TenantPlace
from console.render import render
from fleet import availability, looks, registry, served_models
from fleet.looks import Look
from fleet.models import Worker
from tenants import pricing
from tenants.models import AdapterVersion, BaseModel, ModelAllowance


@page("workers", "workers")
def workers(request: HttpRequest, place: Place) -> HttpResponse:
    return _the_tenants(request, place) if isinstance(place, TenantPlace) else _all(request, place)


@page("workers/named/<slug:name>", "worker", at=At.PLATFORM)
def worker(request: HttpRequest, place: Place, name: str) -> HttpResponse:
    found, now = registry.find(name), "now" in request.GET
    look = (looks.asked if now else looks.sampled)([found])[0]
    digests = look.report.resident if look.report is not None else ()
    versions = _versions(AdapterVersion.with_deleted.unscoped(), digests).order_by("adapter_id", "number")
    known = list(versions)
    strange = sorted(set(digests) - {version.digest for version in known})
    context = {"worker": found, "look": look, "now": now, "versions": known, "strange": strange}
    return render(request, place, "console/worker.html", context)


def _all(request: HttpRequest, place: Place) -> HttpResponse:
    now = "now" in request.GET
    found = looks.asked() if now else looks.sampled()
    serving = Counter(look.worker.base_model_id for look in found if look.serves)
    served = availability.served(found)
    context = {
        "looks": found,
        "now": now,
        "models": [(model, serving[model.pk], served.get(model.pk, False)) for model in served_models.rows()],
        **_residency(request, place, found),
    }
    return render(request, place, "console/workers.html", context)


def _the_tenants(request: HttpRequest, place: TenantPlace) -> HttpResponse:
    tenant = place.tenant
    found = looks.sampled()
    served = availability.served(found)
    prices = pricing.prices_for(tenant)
    allowed = place.rows(ModelAllowance).select_related("base_model").order_by("base_model__name")
    models = [
        (row.base_model, served.get(row.base_model_id, False), prices.get(row.base_model_id))
        for row in allowed.filter(base_model__state=BaseModel.State.ACTIVE)
    ]
    context = {"models": models, "unknown": any(serves is None for _, serves, _ in models)}
    return render(request, place, "console/workers_tenant.html", context | _residency(request, place, found))


def _residency(request: HttpRequest, place: Place, found: list[Look]) -> dict[str, Any]:
    """A page of the versions that workers have loaded, and on which; only the place's own."""
    there, query = looks.resident(found), searched(request)
    rows = to_be_shown(place, _versions(place.rows(AdapterVersion), there))
    if query:
        slug, slash, name = query.partition("/")
        rows = (
            rows.filter(adapter__tenant__slug=slug, adapter__name__startswith=name)
            if slash
            else rows.filter(Q(adapter__tenant__slug=query) | Q(adapter__name__startswith=query))
        )
    page = listing(request, rows)
    return {"listing": page, "loaded": [(version, there[version.digest]) for version in page.items]}


def _versions(rows: QuerySet[Any], digests: Any) -> QuerySet[Any]:
    wanted = (AdapterVersion.State.READY, AdapterVersion.State.CHECKED)
    return rows.select_related("adapter__tenant").filter(digest__in=list(digests), state__in=wanted)


def to_be_shown(place: Place, versions: QuerySet[Any]) -> QuerySet[Any]:
    """Of versions, those of which may be said here where they lie: operators see all."""
    if place.tenant is None or place.operator is not None:
        return versions
    return looks.explained(versions, place.tenant)


def others(found: list[Look], worker: Worker) -> tuple[int, int]:
    """How many other workers serve the same base model, and of how many it is not known."""
    same = [look.serves for look in found if look.worker.base_model == worker.base_model and look.worker != worker]
    return same.count(True), same.count(None)
