from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse

from console.explorer_forms import RequestFilters
from console.listing import SIZE, Listing
from console.pages import page
from console.place import Place
from console.render import render
from console.request_bar import bar_of, duration_ms
from console.screens.payloads import of_request
from tenants import explorer
from tenants.models import InferenceRequest


@page("requests", "requests")
def requests(request: HttpRequest, place: Place) -> HttpResponse:
    filters, after = RequestFilters(place, request.GET), request.GET.get("after") or None
    rows: list[InferenceRequest] = []
    more = False
    if filters.is_valid():
        rows, more = explorer.page_of_requests(place.tenant, filters.wanted(), after=after, limit=SIZE)
    context = {
        "filters": filters,
        "listing": paged(request, rows, str(rows[-1].pk) if more else "", narrowed=filters.given),
        "rows": [(row, _seconds(duration_ms(row)), _seconds(row.first_token_ms)) for row in rows],
    }
    return render(request, place, "console/requests.html", context)


@page("requests/<str:request_id>", "request")
def request(request: HttpRequest, place: Place, request_id: str) -> HttpResponse:
    row = explorer.request_of(place.tenant, request_id)
    context = {
        "row": row,
        "entry": getattr(row, "ledger_entry", None),
        "bar": bar_of(row),
        "took": _seconds(duration_ms(row)),
        "payload": of_request(place, row),
    }
    return render(request, place, "console/request.html", context)


def paged(request: HttpRequest, items: list[Any], last: str, *, narrowed: bool) -> Listing:
    """:param last: what the next page comes after; ``""``: there is none. :param narrowed: whether filters are set."""
    query = request.GET.copy()
    after = query.pop("after", None)
    start = f"{request.path}?{query.urlencode()}" if query else request.path
    query["after"] = last
    more = f"{request.path}?{query.urlencode()}" if last else ""
    return Listing(items, more=more, first=after is None, start=start, query="filtered" if narrowed else "")


def _seconds(ms: int | None) -> float | None:
    return None if ms is None else ms / 1000
