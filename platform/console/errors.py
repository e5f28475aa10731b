"""Errors as pages: what happened, and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.http import HttpRequest, HttpResponse

from console.denial_words import advice as of_denial
from console.render import render
from tenants.errors import Conflict, Forbidden, Invalid, NotFound, Suspended, TenantsError

if TYPE_CHECKING:
    from console.place import Place

_ADVICE = {
    404: "It may have been deleted, or belong to an account that you are no member of.",
    403: "Ask an owner of the account for the role.",
    409: "Nothing was changed. Go back, look at what it is now, and try again.",
    400: "Nothing was changed. Go back and correct it.",
}


def answer(request: HttpRequest, place: Place | None, error: TenantsError) -> HttpResponse:
    """The page for an error that no form of the page could show."""
    status = _status(error)
    if status is None:
        raise error
    advice = of_denial("tenant_suspended", "") if isinstance(error, Suspended) else _ADVICE[status]
    context = {"title": "There is nothing here" if status == 404 else "That did not work", "text": str(error)}
    return render(request, place, "console/problem.html", context | {"advice": advice}, status=status)


def _status(error: TenantsError) -> int | None:
    match error:
        case NotFound():
            return 404
        case Forbidden():
            return 403
        case Conflict():
            return 409
        case Invalid():
            return 400
    return None
