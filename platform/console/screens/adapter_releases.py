"""What an adapter's name stands for: promotion, a canary's share, going back, and what was."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect

from console.confirm import confirm
from console.forms import Form, posted
from console.listing import listing
from console.pages import At, page
from console.place import TenantPlace
from console.render import render
from tenants import adapters, releases
from tenants.callers import Role
from tenants.errors import Conflict
from tenants.models import Adapter, AdapterVersion

_SHOWN = 10
_FIRST_PERCENT = 10


@page("adapters/<str:name>/releases", "adapter-releases", at=At.TENANT)
def list_releases(request: HttpRequest, place: TenantPlace, name: str) -> HttpResponse:
    adapter = adapters.find(place.tenant, name)
    shown = listing(request, releases.history(adapter), name="number", order="-number")
    return render(request, place, "console/adapter_releases.html", {"adapter": adapter, "listing": shown})


@page(
    "adapters/<str:name>/versions/<int:number>/promote",
    "adapter-promote",
    at=At.TENANT,
    role=Role.DEVELOPER,
    post=True,
)
def promote(request: HttpRequest, place: TenantPlace, name: str, number: int) -> HttpResponse:
    tenant = place.tenant
    version = adapters.find_version(tenant, name, number)
    adapter = adapters.find(tenant, name)
    effects = [
        f"All requests for {adapter} are answered by v{number} from then on; {_now(adapter)}.",
        "Every gateway follows within 3 seconds. Requests that run already end with the version they began with.",
    ]
    if adapter.canary is not None:
        effects.append(f"The canary (v{adapter.canary.number}, {adapter.canary_percent} %) ends.")
    if version.state != AdapterVersion.State.READY:
        effects.append(f"It cannot be promoted now: it is {version.state}, and only a ready version can answer.")
    return confirm(
        request,
        place,
        lambda: releases.promote(place.actor, tenant, name, number),
        title=f"Promote {version}?",
        effects=effects,
        button=f"Let v{number} answer",
        done=f"{adapter} stands for v{number} now.",
        back=place.url("adapter", name),
    )


def _now(adapter: Adapter) -> str:
    return "no version answers now" if adapter.current is None else f"now it is v{adapter.current.number}"


@page("adapters/<str:name>/rollback", "adapter-rollback", at=At.TENANT, role=Role.DEVELOPER, post=True)
def roll_back(request: HttpRequest, place: TenantPlace, name: str) -> HttpResponse:
    """The form says from which release, so that two who answer at once, or one who does twice, go back once."""
    tenant = place.tenant
    adapter = adapters.find(tenant, name)
    asked = _From(posted(request), initial={"release": releases.latest_number(adapter)})
    if asked.is_bound:
        releases.require_latest(adapter, asked.number())
    target = releases.before(adapter)
    if target is None:
        raise Conflict(f"{adapter} has no release to go back to.")
    number = target.version.number
    if adapter.canary is not None and target.version_id == adapter.current_id:
        title, button, done = f"End the canary of {adapter}?", "End it", f"The canary of {adapter} has ended."
        effects = [
            f"v{adapter.canary.number}, which answers {adapter.canary_percent} % of the requests now, answers none.",
            f"v{number} answers all of them, as before the canary.",
        ]
    else:
        title, button = f"Roll {adapter} back to v{number}?", f"Go back to v{number}"
        done = f"{adapter} stands for v{number} again."
        effects = [f"v{number} answers all requests for {adapter} from then on; {_now(adapter)}."]
        if adapter.canary is not None:
            effects.append(f"The canary (v{adapter.canary.number}, {adapter.canary_percent} %) ends.")
    effects.append("Every gateway follows within 3 seconds. Once more goes further back.")
    return confirm(
        request,
        place,
        lambda: releases.rollback(place.actor, tenant, name, expected=asked.number()),
        title=title,
        effects=effects,
        button=button,
        done=done,
        back=place.url("adapter", name),
        form=asked,
    )


class _From(Form):
    """The release that a question was about."""

    release = forms.IntegerField(widget=forms.HiddenInput(attrs={"autocomplete": "off"}), required=False)

    def number(self) -> int:
        """-1, which is none's, where the form does not say."""
        found = self.cleaned_data.get("release") if self.is_valid() else None
        return -1 if found is None else int(found)


class _CanaryForm(Form):
    """Which version gets how much. The page's script sets a slider beside the number."""

    aliases = {"number": "version"}  # noqa: RUF012

    version = forms.IntegerField(min_value=1, max_value=2**31 - 1, label="Version")
    percent = forms.IntegerField(
        min_value=0,
        max_value=100,
        label="Share of the requests, %",
        help_text="Requests of one user all meet the same version; raising the share keeps whom it has. 0 ends it.",
        widget=forms.NumberInput(attrs={"data-slider": "Share of the requests, as a slider"}),
    )

    def __init__(self, newest: list[int], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.fields["version"].help_text = "Ready, newest first: " + ", ".join(f"v{number}" for number in newest) + "."


@page("adapters/<str:name>/canary", "adapter-canary", at=At.TENANT, role=Role.DEVELOPER, post=True)
def set_canary(request: HttpRequest, place: TenantPlace, name: str) -> HttpResponse:
    tenant = place.tenant
    adapter = adapters.find(tenant, name)
    others = adapter.versions.filter(state=AdapterVersion.State.READY).exclude(pk=adapter.current_id)
    newest = list(others.order_by("-number").values_list("number", flat=True)[:_SHOWN])
    initial = {
        "version": adapter.canary.number if adapter.canary else _asked(request) or (newest[0] if newest else None),
        "percent": adapter.canary_percent or _FIRST_PERCENT,
    }
    form = _CanaryForm(newest, data=posted(request), initial=initial)
    if request.method == "POST" and form.carry_out(
        lambda sent: releases.set_canary(place.actor, tenant, name, sent["version"], sent["percent"])
    ):
        messages.success(request, _outcome(form.cleaned_data))
        return HttpResponseRedirect(place.url("adapter", name))
    context = {"adapter": adapter, "form": form, "possible": newest and adapter.current is not None}
    return render(request, place, "console/adapter_canary.html", context)


def _asked(request: HttpRequest) -> int | None:
    """The version that a link to the page names."""
    wanted = request.GET.get("version", "")
    return int(wanted) if wanted.isascii() and wanted.isdigit() and len(wanted) < 10 else None


def _outcome(sent: dict[str, Any]) -> str:
    if not sent["percent"]:
        return "The canary has ended."
    return f"v{sent['version']} answers {sent['percent']} % of the requests now."


@page("adapters/<str:name>/automatic", "adapter-automatic", at=At.TENANT, role=Role.DEVELOPER, post=True)
def set_automatic(request: HttpRequest, place: TenantPlace, name: str) -> HttpResponse:
    """Changes it to what it is not; the form says which, so that two who press at once do not undo each other."""
    tenant = place.tenant
    adapter = adapters.find(tenant, name)
    wanted = request.GET.get("to", "no" if adapter.auto_promote else "yes") == "yes"
    if wanted:
        title = f"Promote new versions of {adapter} by themselves?"
        effects = ["A version that becomes ready answers all requests at once; never while a canary runs."]
    else:
        title = f"Promote new versions of {adapter} by hand only?"
        effects = ["A new version answers nothing until somebody promotes it or makes it the canary."]
    return confirm(
        request,
        place,
        lambda: releases.set_automatic(place.actor, tenant, name, wanted),
        title=title,
        effects=effects,
        button="By themselves" if wanted else "By hand only",
        done=f"New versions of {adapter} are promoted {'by themselves' if wanted else 'by hand only'}.",
        back=place.url("adapter", name),
    )
