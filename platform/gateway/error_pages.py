"""Errors that no page of the console answers itself, as pages: what happened, and what to do.

What is shown while the server is in trouble, and what is refused ahead of Django, needs neither session nor database.
"""

from __future__ import annotations

from urllib.parse import quote

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.loader import render_to_string
from django.urls import Resolver404, is_valid_path
from django.utils.http import escape_leading_slashes, url_has_allowed_host_and_scheme
from django.views.decorators.cache import never_cache

from console.render import render
from console.templatetags.console import size
from gateway.api_paths import is_api

_ALONE = "console/problem_alone.html"
_SEND_AGAIN = "Load the form again, fill it in, and send it from there."


def alone(title: str, text: str, advice: str) -> bytes:
    """A page for what is refused ahead of Django, or while nothing may be asked."""
    return render_to_string(_ALONE, {"title": title, "text": text, "advice": advice}).encode()


def too_large(limit: int) -> bytes:
    """:param limit: in bytes."""
    text = f"What was sent is larger than the {size(limit)} that the server takes at once. Nothing was changed."
    advice = "Go back and send less. Large files, of adapters and of batches, go with JavaScript or through the API."
    return alone("That was too large", text, advice)


def refused(status: int, text: str) -> bytes:
    """:param text: a sentence of :mod:`gateway.errors`."""
    title = "The server is in trouble" if status >= 500 else "That did not work"
    return alone(title, text, "Nothing was changed. Go back, and try again.")


@never_cache
def csrf_failed(request: HttpRequest, reason: str = "") -> HttpResponse:
    """Django's reason is for its log: whoever reads this signed in again in another tab, or refuses cookies."""
    context = {
        "title": "This form is out of date",
        "text": "It was opened before the last time that you signed in or out in this browser, or without its cookies. "
        "Nothing was changed.",
        "advice": _SEND_AGAIN,
        "again": _form_of(request),
    }
    return _answer(request, context, 403)


@never_cache
def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    context = {"title": "That did not work", "text": "The request is malformed. Nothing was changed."}
    return _answer(request, context | {"advice": _SEND_AGAIN}, 400)


@never_cache
def forbidden(request: HttpRequest, exception: Exception) -> HttpResponse:
    context = {"title": "That did not work", "text": "You may not do this. Nothing was changed."}
    return _answer(request, context | {"advice": "Ask an owner of the account, or an operator."}, 403)


@never_cache
def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    meant = _meant(request) if isinstance(exception, Resolver404) else None
    if meant is not None:
        return HttpResponseRedirect(meant)
    advice = "Look at the address, or start from one of the pages that there are."
    context = {"title": "There is nothing here", "text": "No page has this address."}
    return _answer(request, context | {"advice": advice}, 404)


@never_cache
def not_allowed(request: HttpRequest) -> HttpResponse:
    text = "This address takes forms and has no page of its own."
    if request.method not in {"GET", "HEAD"}:
        text = "The page at this address does not take what was sent. Nothing was changed."
    context = {"title": "That did not work", "text": text}
    return _answer(request, context | {"advice": "Start from one of the pages that there are."}, 405)


def server_error(request: HttpRequest) -> HttpResponse:
    text = "The server had an error. Whether anything was changed is not known: look before you try again."
    if request.method in {"GET", "HEAD"}:
        text = "The server had an error."
    advice = "Try again in a moment. If it goes on, tell whoever runs the platform: its log says why."
    response = HttpResponse(alone("The server is in trouble", text, advice), status=500)
    response["Cache-Control"] = "no-store"
    return response


def _answer(request: HttpRequest, context: dict[str, str], status: int) -> HttpResponse:
    user = getattr(request, "user", None)  # what a middleware refuses may come before there is one
    if user is not None and user.is_authenticated:
        return render(request, None, "console/problem_onward.html", context, status=status)
    return HttpResponse(render_to_string(_ALONE, context), status=status)


def _meant(request: HttpRequest) -> str | None:
    """The page whose address differs from the one asked for by its last slash alone."""
    path = request.path_info
    other = path.removesuffix("/") if path.endswith("/") else f"{path}/"
    if request.method not in {"GET", "HEAD"} or is_api(path) or not is_valid_path(other):
        return None
    query = request.META["QUERY_STRING"]
    return escape_leading_slashes(quote(other) + (f"?{query}" if query else ""))


def _form_of(request: HttpRequest) -> str:
    """Where the form was, as far as the browser says and it is a page of this host."""
    came = request.headers.get("Referer", "")
    return came if url_has_allowed_host_and_scheme(came, {request.get_host()}, request.is_secure()) else ""
