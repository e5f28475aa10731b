from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.html import format_html

from console import limit_words
from console.confirm import confirm
from console.first_request import first_request
from console.forms import posted
from console.key_forms import ChangeForm, IssueForm, RotateForm
from console.listing import listing, searched
from console.pages import At, page
from console.place import Place, TenantPlace
from console.render import render
from console.templatetags.console import number, when
from tenants import key_ring, key_search
from tenants.callers import Caller, Role
from tenants.errors import Conflict
from tenants.keys import Secret
from tenants.models import ApiKey
from tenants.restrictions import names_of, names_of_all
from tenants.standing import standing

_LINE = 20
"""Keys of a line that its page shows: the newest."""


@page("keys", "keys")
def keys(request: HttpRequest, place: Place) -> HttpResponse:
    if place.caller is None:
        rows = place.rows(ApiKey).select_related("tenant", "member__user", "successor")
    else:
        rows = key_ring.reachable(place.caller)
    state = request.GET.get("state", "")
    rows = key_search.searched(rows, searched(request), accounts=place.caller is None)
    found = listing(request, key_search.in_state(rows, state), name="public_id")
    context = {
        "listing": found,
        "rows": list(zip(found.items, names_of_all(found.items), strict=True)),
        "state": state,
        "states": key_search.STATES,
        "narrowed": found.filtered or state in key_search.STATES,
        "others": place.caller is not None and not place.may(Role.OWNER),
    }
    return render(request, place, "console/keys.html", context)


@page("keys/new", "key-new", at=At.TENANT, role=Role.DEVELOPER, post=True)
def key_new(request: HttpRequest, place: TenantPlace) -> HttpResponse:
    caller = place.caller
    form = IssueForm(place, posted(request), initial={"member": request.GET.get("member", "")})

    def issue(cleaned: dict[str, Any]) -> tuple[str, Secret]:
        key, secret = key_ring.issue(caller, form.wanted(cleaned))
        return key.public_id, secret

    if request.method == "POST" and form.carry_out_once(request, place, issue):
        return _shown(request, place, key_ring.find(caller, form.made), form.result)
    return render(request, place, "console/key_new.html", {"form": form})


@page("keys/<str:public_id>", "key", at=At.TENANT)
def key(request: HttpRequest, place: TenantPlace, public_id: str) -> HttpResponse:
    caller = place.caller
    found = key_ring.find(caller, public_id)
    line = list(key_ring.reachable(caller).filter(line=found.line).order_by("-pk")[: _LINE + 1])
    context = {
        "key": found,
        "models": names_of(found),
        "line": line[:_LINE],
        "line_goes_on": len(line) > _LINE,
        "running": key_search.running(found),
        "subjects": _subjects(found),
        "changeable": place.may(Role.DEVELOPER) and found.state == "active",
        "successor": _successor(found),
    }
    return render(request, place, "console/key.html", context)


@page("keys/<str:public_id>/change", "key-change", at=At.TENANT, role=Role.DEVELOPER, post=True)
def key_change(request: HttpRequest, place: TenantPlace, public_id: str) -> HttpResponse:
    caller = place.caller
    found = _working(caller, public_id)
    form = ChangeForm(found, posted(request))
    if request.method == "POST" and form.carry_out(lambda cleaned: key_ring.change(caller, found, **form.changes())):
        messages.success(request, "The key was changed. What is narrower now reaches running requests within seconds.")
        return HttpResponseRedirect(place.url("key", public_id))
    shared = key_ring.reachable(caller).filter(line=found.line).count() - 1
    return render(request, place, "console/key_change.html", {"form": form, "key": found, "shared": shared})


@page("keys/<str:public_id>/rotate", "key-rotate", at=At.TENANT, role=Role.DEVELOPER, post=True)
def key_rotate(request: HttpRequest, place: TenantPlace, public_id: str) -> HttpResponse:
    caller = place.caller
    found = key_ring.find(caller, public_id)
    form = RotateForm(posted(request))

    def rotate(cleaned: dict[str, Any]) -> tuple[str, Secret]:
        made, secret = key_ring.rotate(caller, found, **form.rotation(cleaned))
        return made.public_id, secret

    if request.method == "POST":
        if form.carry_out_once(request, place, rotate):
            return _shown(request, place, key_ring.find(caller, form.made), form.result)
    else:
        _working(caller, public_id)
    context = {"form": form, "key": found, "running": key_search.running(found)}
    return render(request, place, "console/key_rotate.html", context)


@page("keys/<str:public_id>/revoke", "key-revoke", at=At.TENANT, role=Role.DEVELOPER, post=True)
def key_revoke(request: HttpRequest, place: TenantPlace, public_id: str) -> HttpResponse:
    caller = place.caller
    found = key_ring.find(caller, public_id)
    name = found.name or found.public_id
    return confirm(
        request,
        place,
        lambda: key_ring.revoke(caller, found),
        title=f"Revoke the key {name}?",
        effects=_revocation(found),
        button="Revoke it",
        done=f"The key {name} is revoked.",
        back=place.url("key", public_id),
    )


def _working(caller: Caller, public_id: str) -> ApiKey:
    """Raises :class:`~tenants.errors.Conflict` for a key that has ended: nothing of it can be changed."""
    found = key_ring.find(caller, public_id)
    if found.state != "active":
        raise Conflict(f"The key {found.name or found.public_id} is {found.state}.")
    return found


def _successor(found: ApiKey) -> ApiKey | None:
    return getattr(found, "successor", None)


def _subjects(found: ApiKey) -> list[tuple[str, list[limit_words.Row]]]:
    """The limits that hold for its requests: whose, and how they stand."""
    titles = {"tenant": "The account's", "member": f"The member's ({found.member and found.member.user})"}
    standings = standing(found.tenant, found.member, found)
    return [
        (
            titles.get(each["subject"].partition(":")[0], "The key's own"),
            [limit_words.row(name, at) for name, at in each["limits"].items()],
        )
        for each in standings
        if each["limits"]
    ]


def _revocation(found: ApiKey) -> list[str]:
    """What it does, with numbers."""
    if found.revoked_at is not None:
        return ["It is revoked already; nothing changes."]
    count = key_search.running(found)
    used = found.last_used_at
    ends = "1 request that runs with it ends" if count == 1 else f"{number(count)} requests that run with it end"
    effects = [
        "It was never used." if used is None else format_html("It was last used on {}.", when(used, "short")),
        "No request runs with it now." if count == 0 else f"{ends} within 5 seconds, and what was generated is billed.",
        "New requests with it are refused at once. This cannot be undone.",
    ]
    successor = _successor(found)
    if successor is not None and successor.state == "active":
        effects.append(f"Its successor {successor.public_id} goes on working.")
    return effects


def _shown(request: HttpRequest, place: Place, made: ApiKey, secret: Secret | None) -> HttpResponse:
    """The only page that ever has the key's text; for a form that was sent twice, the page that says so."""
    text = None if secret is None else secret.reveal()
    context = {"key": made, "text": text, "first": first_request(request, made)}
    return render(request, place, "console/key_shown.html", context)
