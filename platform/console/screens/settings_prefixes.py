from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect

from console.confirm import confirm
from console.forms import posted
from console.listing import listing, searched
from console.pages import At, page
from console.place import Place
from console.prefix_forms import PrefixForm
from console.render import render
from fleet import prefix_placement, public_prefixes
from fleet.models import PublicPrefix, Worker
from tenants import adapters
from tenants.counted import counted


@page("settings/prefixes", "prefixes", at=At.PLATFORM)
def prefixes(request: HttpRequest, place: Place) -> HttpResponse:
    query = searched(request)
    rows = PublicPrefix.objects.select_related("base_model", "adapter__tenant")
    if query:
        rows = rows.filter(name__startswith=query)
    found = listing(request, rows, name="name", order="name")
    shown = [(each, public_prefixes.text(each)[:200], public_prefixes.shared_tokens(each)) for each in found.items]
    return render(request, place, "console/settings_prefixes.html", {"listing": found, "rows": shown})


@page("settings/prefixes/new", "prefix-new", at=At.PLATFORM, post=True)
def new(request: HttpRequest, place: Place) -> HttpResponse:
    form = PrefixForm(posted(request))
    if request.method == "POST" and form.carry_out(
        lambda said: public_prefixes.declare(
            place.actor,
            said["name"],
            said["model"],
            adapter=adapters.named(said["adapter"], "adapter") if said["adapter"] else None,
            **form.source(),
        )
    ):
        messages.success(request, f"{form.result} is public: the workers have it within seconds.")
        return HttpResponseRedirect(place.url("prefixes"))
    context = {
        "form": form,
        "title": "Declare a public prefix",
        "text": "Prompts of all accounts that begin with this text share what it was computed to. Everything after it "
        "stays each account’s own.",
        "button": "Declare it public",
        "list": "prefixes",
        "list_title": "Public prefixes",
    }
    return render(request, place, "console/form_page.html", context)


@page("settings/prefixes/<slug:name>", "prefix", at=At.PLATFORM)
def prefix(request: HttpRequest, place: Place, name: str) -> HttpResponse:
    found = public_prefixes.find(name)
    context = {
        "prefix": found,
        "text": public_prefixes.text(found),
        "tokens": len(found.tokens),
        "shared": public_prefixes.shared_tokens(found),
        "asked": "now" in request.GET,
    }
    if context["asked"]:
        context["workers"] = prefix_placement.standing().get(found.name, {}).items()
    return render(request, place, "console/settings_prefix.html", context)


@page("settings/prefixes/<slug:name>/withdraw", "prefix-withdraw", at=At.PLATFORM, post=True)
def withdraw(request: HttpRequest, place: Place, name: str) -> HttpResponse:
    found = public_prefixes.find(name)
    workers = Worker.objects.filter(base_model=found.base_model, state=Worker.State.ACTIVE).count()
    shared = public_prefixes.shared_tokens(found)
    return confirm(
        request,
        place,
        lambda: public_prefixes.withdraw(place.actor, found),
        title=f"Withdraw the public prefix {found}?",
        effects=[
            f"{counted(workers, 'worker')} of {found.base_model} forget it within seconds.",
            f"Each account computes its {shared} tokens for itself again: first requests take longer, and prompts that "
            "were charged as cached are charged whole.",
        ],
        button="Withdraw it",
        done=f"{found} is no longer public.",
        back=place.url("prefixes"),
    )
