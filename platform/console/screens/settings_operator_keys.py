from __future__ import annotations

from django import forms
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.html import format_html

from console.confirm import confirm
from console.forms import Form, posted
from console.listing import listing, searched
from console.moment_field import MomentField
from console.pages import At, page
from console.place import Place
from console.render import render
from console.templatetags.console import when
from tenants import operator_keys
from tenants.models import OperatorKey


@page("settings/operator-keys", "operator-keys", at=At.PLATFORM)
def keys(request: HttpRequest, place: Place) -> HttpResponse:
    query, rows = searched(request), OperatorKey.objects.all()
    if query:
        rows = rows.filter(name__startswith=query)
    found = listing(request, rows, name="public_id", order="name")
    context = {"listing": found, "now": timezone.now()}
    return render(request, place, "console/settings_operator_keys.html", context)


class _NewKey(Form):
    name = forms.CharField(
        max_length=100, help_text="Who or what uses it, as the audit log will say. No name is given out twice."
    )
    expires_at = MomentField(label="Expires", help_text="Left empty: never.")


@page("settings/operator-keys/issue", "operator-key-new", at=At.PLATFORM, post=True)
def issue(request: HttpRequest, place: Place) -> HttpResponse:
    """Sent twice, the second one finds the name taken: no name is given out twice, so no key is either."""
    form = _NewKey(posted(request))
    if request.method == "POST" and form.carry_out(
        lambda said: operator_keys.issue(place.actor, said["name"], expires_at=said["expires_at"])
    ):
        key, secret = form.result
        shown = {"key": key, "text": secret.reveal()}
        return render(request, place, "console/settings_operator_key.html", shown)
    context = {
        "form": form,
        "title": "Issue an operator’s key",
        "text": "It opens /api/operator/…: everything an operator may do, of all accounts. Its text is shown once, on "
        "the next page, and stored nowhere.",
        "button": "Issue the key",
        "list": "operator-keys",
        "list_title": "Operators’ keys",
    }
    return render(request, place, "console/form_page.html", context)


@page("settings/operator-keys/<slug:public_id>/revoke", "operator-key-revoke", at=At.PLATFORM, post=True)
def revoke(request: HttpRequest, place: Place, public_id: str) -> HttpResponse:
    key = operator_keys.find(public_id)
    used = "It was never used."
    if key.last_used_at is not None:
        used = format_html("It was last used on {}.", when(key.last_used_at, "short"))
    return confirm(
        request,
        place,
        lambda: operator_keys.revoke(place.actor, key),
        title=f"Revoke the operator’s key {key}?",
        effects=["It is refused from the next request on; this cannot be taken back.", used],
        button="Revoke it",
        done=f"The key {key} is revoked.",
        back=place.url("operator-keys"),
    )
