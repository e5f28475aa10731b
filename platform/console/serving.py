"""How every page of the console is served."""

from __future__ import annotations

from functools import wraps
from typing import Any

from django.db import transaction
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed
from django.urls import URLPattern, path
from django.views.decorators.cache import never_cache

from console.errors import answer
from console.pages import At, Page, View, pages
from console.place import TENANT_PREFIX, Place, place_of
from console.signing_in import to_sign_in
from tenants.errors import TenantsError


def urlpatterns() -> list[URLPattern]:
    found = []
    for each in pages().values():
        if At.PLATFORM in each.at:
            found.append(path(each.path, _served(each), name=each.name))
        if At.TENANT in each.at:
            found.append(path(f"t/<slug:tenant>/{each.path}", _served(each), name=TENANT_PREFIX + each.name))
    return found


def _served(each: Page) -> View:
    """Whoever is not signed in is asked to; a stranger finds no page (404). What a page does in answer to a POST is one
    transaction together with its audit entry. The errors of :mod:`tenants.errors` become pages that say so.
    """

    @never_cache
    @wraps(each.view)
    def view(request: HttpRequest, tenant: str | None = None, **arguments: Any) -> HttpResponse:
        if not request.user.is_authenticated:
            return to_sign_in(request)
        place: Place | None = None
        try:
            place = place_of(request, tenant)
            if place.caller is not None:
                place.caller.require(each.role)
            if request.method in {"GET", "HEAD"}:
                return each.view(request, place, **arguments)
            if request.method == "POST" and each.post:
                with transaction.atomic():
                    return each.view(request, place, **arguments)
            return HttpResponseNotAllowed(["GET", "POST"] if each.post else ["GET"])
        except TenantsError as error:
            return answer(request, place, error)

    return view
