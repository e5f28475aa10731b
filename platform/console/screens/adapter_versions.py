"""One version of an adapter: what it is, what was found wrong with it, and how it differs from another."""

from __future__ import annotations

from django import forms
from django.http import HttpRequest, HttpResponse

from console.confirm import confirm
from console.forms import Form
from console.pages import At, page
from console.place import TenantPlace
from console.render import render
from console.screens.workers import to_be_shown
from fleet import looks
from fleet.models import Worker
from tenants import activation, adapters, version_differences
from tenants.callers import Role
from tenants.models import Activation, AdapterVersion

State = AdapterVersion.State


@page("adapters/<str:name>/versions/<int:number>", "adapter-version", at=At.TENANT)
def show_version(request: HttpRequest, place: TenantPlace, name: str, number: int) -> HttpResponse:
    version = adapters.find_version(place.tenant, name, number)
    adapter = adapters.find(place.tenant, name)
    trial: Activation | None = getattr(version, "activation", None)
    decided = version.state in {State.READY, State.REJECTED}
    context = {
        "adapter": adapter,
        "version": version,
        "trial": trial,
        "undecided": not decided,
        "retriable": activation.is_open(version, trial),
        "stands": adapter.current_id == version.pk,
        "is_canary": adapter.canary_id == version.pk,
        "workers": _workers(place, version),
    }
    return render(request, place, "console/adapter_version.html", context)


def _workers(place: TenantPlace, version: AdapterVersion) -> list[Worker]:
    """On which it lies, as far as that may be said here."""
    told = to_be_shown(place, AdapterVersion.objects.unscoped().filter(pk=version.pk)).exists()
    return looks.resident(looks.sampled()).get(version.digest, []) if told else []


@page(
    "adapters/<str:name>/versions/<int:number>/try",
    "adapter-version-try",
    at=At.TENANT,
    role=Role.DEVELOPER,
    post=True,
)
def try_version(request: HttpRequest, place: TenantPlace, name: str, number: int) -> HttpResponse:
    tenant = place.tenant
    version = adapters.find_version(tenant, name, number)
    return confirm(
        request,
        place,
        lambda: activation.try_again(place.actor, tenant, name, number),
        title=f"Try {version} again?",
        effects=[
            f"It is {version.state} now; a worker tries it once more, and what comes of it decides.",
            "Where the adapter promotes new versions by itself, its name stands for this one once it is ready.",
        ],
        button="Try it again",
        done=f"{version} waits for its trial.",
        back=place.url("adapter-version", name, number),
    )


@page(
    "adapters/<str:name>/versions/<int:number>/delete",
    "adapter-version-delete",
    at=At.TENANT,
    role=Role.DEVELOPER,
    post=True,
)
def delete_version(request: HttpRequest, place: TenantPlace, name: str, number: int) -> HttpResponse:
    tenant = place.tenant
    version = adapters.find_version(tenant, name, number)
    adapter = adapters.find(tenant, name)
    effects = [
        f"Requests for {adapter}@{number} are refused from then on. The ledger keeps what was billed.",
        "A rollback passes it over. Its number is not given out again.",
    ]
    effects += [f"It cannot be deleted now: {reason}." for reason in adapters.referring_to_version(adapter, version)]
    return confirm(
        request,
        place,
        lambda: adapters.delete_version(place.actor, tenant, name, number),
        title=f"Delete {version}?",
        effects=effects,
        button="Delete it",
        done=f"{version} is deleted.",
        back=place.url("adapter", name),
    )


class _Comparison(Form):
    """Which two versions."""

    before = forms.IntegerField(min_value=1, label="From version")
    after = forms.IntegerField(min_value=1, label="To version")


@page("adapters/<str:name>/compare", "adapter-compare", at=At.TENANT)
def compare_versions(request: HttpRequest, place: TenantPlace, name: str) -> HttpResponse:
    """Of two versions; without a choice, of the newest and the one before it."""
    tenant = place.tenant
    adapter = adapters.find(tenant, name)
    newest = list(adapter.versions.order_by("-number").values_list("number", flat=True)[:2])
    chosen = {"before": request.GET.get("before"), "after": request.GET.get("after")}
    if chosen == {"before": None, "after": None} and newest:
        chosen = {"before": str(newest[-1]), "after": str(newest[0])}
    form = _Comparison(chosen)
    context: dict[str, object] = {"adapter": adapter, "form": form, "few": len(newest) < 2}
    if form.carry_out(lambda sent: [adapters.find_version(tenant, name, sent[which]) for which in ("before", "after")]):
        before, after = form.result
        context |= {"before": before, "after": after, "differences": version_differences.compare(before, after)}
    return render(request, place, "console/adapter_compare.html", context)
