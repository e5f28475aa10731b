from __future__ import annotations

from django.db.models import Q
from django.http import HttpRequest, HttpResponse

from console.listing import listing, searched
from console.pages import page
from console.place import Place
from console.render import render
from tenants.callers import Role
from tenants.models import AuditEntry


@page("audit", "audit", role=Role.OWNER)
def audit(request: HttpRequest, place: Place) -> HttpResponse:
    rows = place.rows(AuditEntry).select_related("tenant")
    query = searched(request)
    if query:
        rows = rows.filter(Q(subject=query) | Q(action__startswith=query) | Q(actor_name=query))
    return render(request, place, "console/audit.html", {"listing": listing(request, rows)})
