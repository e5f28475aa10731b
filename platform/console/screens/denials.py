from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

from django.db.models import Sum
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils import timezone

from console.denial_words import advice, whose
from console.explorer_forms import DenialFilters
from console.listing import SIZE, searched
from console.pages import page
from console.place import Place
from console.render import render
from console.screens.requests import paged
from tenants import explorer
from tenants.models import Denial, InferenceRequest

_MOST_REASONS = 8


@page("denials", "denials")
def denials(request: HttpRequest, place: Place) -> HttpResponse:
    asked = searched(request)
    request_id, answer = _id_in(asked), None
    if request_id is not None:
        answer = _refusal(place, request_id)
        if answer is None and _admitted(place, request_id):
            return redirect(place.url("request", str(request_id)))
    filters, after = DenialFilters(place, request.GET), request.GET.get("after") or None
    rows: list[Denial] = []
    more = False
    if filters.is_valid():
        rows, more = explorer.page_of_denials(place.tenant, filters.wanted(), after=after, limit=SIZE)
    today = _today(place)
    context = {
        "filters": filters,
        "listing": paged(request, rows, explorer.denial_id(rows[-1]) if more else "", narrowed=filters.given),
        "rows": [_shown(row) for row in rows],
        "today": today[:_MOST_REASONS],
        "rarer": _rarer(today[_MOST_REASONS:]),
        "asked": asked,
        "is_id": request_id is not None,
        "answer": answer,
    }
    return render(request, place, "console/denials.html", context)


def _shown(row: Denial) -> dict[str, Any]:
    return {"row": row, "whose": whose(row.subject), "advice": advice(row.code, row.limit)}


def _today(place: Place) -> list[dict[str, Any]]:
    """The reasons of the last 24 hours, the most frequent first."""
    rows = place.rows(Denial).filter(hour__gt=timezone.now() - timedelta(hours=24))
    return list(rows.values("code", "limit").annotate(total=Sum("count")).order_by("-total", "code", "limit"))


def _rarer(reasons: list[dict[str, Any]]) -> dict[str, int]:
    return {"reasons": len(reasons), "total": sum(reason["total"] for reason in reasons)}


def _id_in(text: str) -> UUID | None:
    """The id of a request, from ``x-request-id`` or as an answer's ``id`` has it."""
    try:
        return UUID(text.removeprefix("chatcmpl-").removeprefix("cmpl-"))
    except ValueError:
        return None


def _refusal(place: Place, request_id: UUID) -> dict[str, Any] | None:
    """Why the request was refused, if it was the last one of its hour and reason."""
    recent = place.rows(Denial).filter(last_request_id=request_id).select_related("tenant", "key")
    row = recent.order_by("-hour").first()
    return None if row is None else _shown(row)


def _admitted(place: Place, request_id: UUID) -> bool:
    """Whether it was let in, and is this place's."""
    return bool(place.rows(InferenceRequest).filter(pk=request_id).exists())
