"""The way to the sign-in page, and back to where one was."""

from __future__ import annotations

from urllib.parse import urlencode, urlsplit

from django.conf import settings
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.http import url_has_allowed_host_and_scheme


def to_sign_in(request: HttpRequest) -> HttpResponse:
    """The whole page goes there, also when only a part of it was asked for, and comes back to what it showed. A form
    that was sent is lost, which the sign-in page says (``unsent``).
    """
    part = "HX-Request" in request.headers
    said = {"next": _page_of(request) if part else request.get_full_path()}
    if request.method not in {"GET", "HEAD"}:
        said["unsent"] = "1"
    query = urlencode({name: text for name, text in said.items() if text}, safe="/")
    address = f"{settings.LOGIN_URL}?{query}" if query else str(settings.LOGIN_URL)
    return HttpResponse(status=204, headers={"HX-Redirect": address}) if part else HttpResponseRedirect(address)


def _page_of(request: HttpRequest) -> str:
    """The path of the page that a part belongs to; empty where it is none of this host's."""
    page = request.headers.get("HX-Current-URL", "")
    if not url_has_allowed_host_and_scheme(page, {request.get_host()}, request.is_secure()):
        return ""
    path, query = urlsplit(page)[2:4]
    return f"{path}?{query}" if query else path
