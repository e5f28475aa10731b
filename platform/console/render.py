from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from django import shortcuts
from django.forms import BaseForm
from django.http import HttpRequest, HttpResponse

from console import navigation
from tenants.models import Member

if TYPE_CHECKING:
    from console.place import Place

ACCOUNTS = 20
"""How many the menu lists; with more, it says so and leads to the list of all."""


def render(
    request: HttpRequest,
    place: Place | None,
    template: str,
    context: Mapping[str, Any] | None = None,
    *,
    status: int = 200,
) -> HttpResponse:
    """A page with what surrounds it: where one is, where one can go, and the accounts one can change to.

    :param status: where a form that was sent is wrong, the answer is 400 instead of 200.
    """
    dialog = "HX-Request" in request.headers and request.headers.get("HX-Target") == "dialog-body"
    surroundings: dict[str, Any] = {"place": place, "dialog": dialog}
    if place is not None and "HX-Request" not in request.headers:
        surroundings["menu"] = navigation.menu(request, place)
    if request.user.is_authenticated and "HX-Request" not in request.headers:
        memberships = Member.objects.unscoped().select_related("tenant").filter(user=request.user)
        found = [member.tenant for member in memberships.order_by("tenant__slug")[: ACCOUNTS + 1]]
        surroundings |= {"accounts": found[:ACCOUNTS], "more_accounts": len(found) > ACCOUNTS}
    shown = surroundings | dict(context or {})
    if status == 200 and request.method == "POST" and any(map(_wrong, shown.values())):
        status = 400
    return shortcuts.render(request, template, shown, status=status)


def _wrong(value: object) -> bool:
    return isinstance(value, BaseForm) and value.is_bound and bool(value.errors)
