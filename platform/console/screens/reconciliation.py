from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect

from console.listing import listing
from console.pages import At, page
from console.place import Place
from console.render import render
from tenants import reconciliation_runs
from tenants.models import ReconciliationRun


@page("usage/reconciliation", "reconciliation", at=At.PLATFORM, post=True)
def reconciliation(request: HttpRequest, place: Place) -> HttpResponse:
    """Looks at whether everything adds up, and what they found; asks for one."""
    if request.method == "POST":
        reconciliation_runs.ask(place.actor)
        messages.success(request, "Everybody's books will be looked at within a minute, where Celery runs.")
        return HttpResponseRedirect(place.url("reconciliation"))
    return render(
        request, place, "console/reconciliation.html", {"listing": listing(request, ReconciliationRun.objects.all())}
    )
