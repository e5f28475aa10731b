from __future__ import annotations

from django.http import HttpRequest, HttpResponse

from console.listing import searched
from console.pages import At, page
from console.place import Place, TenantPlace
from console.render import render
from tenants import playground as keys
from tenants.callers import Role


@page("playground", "playground", at=At.TENANT, role=Role.DEVELOPER)
def playground(request: HttpRequest, place: TenantPlace) -> HttpResponse:
    """Chat with what the account may use. ``?q=`` searches the models, ``?model=`` chooses one."""
    caller = place.caller
    names = keys.models(caller, searched(request), keys.MOST_MODELS + 1)
    chosen = request.GET.get("model", "").replace("\0", "")[:200]
    if chosen and chosen not in names:
        names = [*(name for name in keys.models(caller, chosen) if name == chosen), *names]
    context = {
        "key": keys.find(caller),
        "names": names[: keys.MOST_MODELS],
        "more": len(names) > keys.MOST_MODELS,
        "chosen": chosen,
        "tickets": _tickets(place, caller.tenant.slug),
    }
    return render(request, place, "console/playground.html", context)


def _tickets(place: Place, slug: str) -> str:
    """Where the script gets tickets for the socket: the API's path, an operator's where one acts for the account."""
    return "/api/playground-tickets" if place.operator is None else f"/api/operator/tenants/{slug}/playground-tickets"
