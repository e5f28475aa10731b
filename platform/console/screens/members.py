from __future__ import annotations

from typing import Any
from uuid import UUID

from django.contrib import messages
from django.db.models import Count, OuterRef, Q, Subquery
from django.db.models.functions import Coalesce
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils import timezone

from console.confirm import confirm
from console.forms import posted
from console.limit_words import row
from console.listing import listing, searched
from console.member_forms import MemberChange
from console.pages import At, page
from console.place import Place, TenantPlace
from console.render import render
from tenants import limits, membership, restrictions
from tenants.callers import Role
from tenants.counted import counted
from tenants.models import ApiKey, InferenceRequest, Invitation, Member
from tenants.standing import standing

_KEYS_SHOWN = 20


@page("members", "members", at=At.TENANT)
def members(request: HttpRequest, place: TenantPlace) -> HttpResponse:
    tenant = place.tenant
    keys: Any = ApiKey.objects.filter(tenant=tenant, member=OuterRef("pk"), revoked_at=None).order_by()
    counted_keys = Subquery(keys.values("member").annotate(n=Count("*")).values("n"))
    rows = Member.objects.filter(tenant=tenant).select_related("user").annotate(keys=Coalesce(counted_keys, 0))
    query = searched(request)
    if query:
        rows = rows.filter(Q(user__username__icontains=query) | Q(user__email__icontains=query) | Q(role=query.lower()))
    found = listing(request, rows, name="public_id")
    for member in found.items:
        member.limited = sum(value is not None for value in member.own_limits().values())
        member.restricted = member.only_models is not None or member.only_adapters is not None
    open_ones = Invitation.objects.filter(tenant=tenant, accepted_at=None, revoked_at=None)
    context = {"listing": found, "invited": open_ones.filter(expires_at__gt=timezone.now()).count()}
    return render(request, place, "console/members.html", context)


@page("members/<uuid:id>", "member", at=At.TENANT)
def member(request: HttpRequest, place: TenantPlace, id: UUID) -> HttpResponse:
    tenant = place.tenant
    found = membership.find_member(tenant, id)
    keys = ApiKey.objects.filter(tenant=tenant, member=found, revoked_at=None).order_by("-pk")
    subjects = standing(tenant, found)
    own = subjects[1]["limits"] if len(subjects) > 1 else {}
    context = {
        "member": found,
        "limits": [row(name, at) for name, at in own.items()],
        "models": restrictions.names_of(found),
        "keys": list(keys[: _KEYS_SHOWN + 1]),
        "shown": _KEYS_SHOWN,
        "own": place.caller is not None and place.caller.member is not None and place.caller.member.pk == found.pk,
    }
    return render(request, place, "console/members_one.html", context)


@page("members/<uuid:id>/change", "member-change", at=At.TENANT, role=Role.OWNER, post=True)
def change(request: HttpRequest, place: TenantPlace, id: UUID) -> HttpResponse:
    found = membership.find_member(place.tenant, id)
    name, form = str(found.user), MemberChange(found, posted(request))

    def act(changed: dict[str, Any]) -> None:
        if "role" in changed:
            membership.change_role(place.actor, found, Role(changed["role"]))
        if restriction := form.restriction():
            restrictions.restrict(place.actor, found, restriction["models"])
        limits.set_limits(place.actor, found, form.limits())

    if request.method == "POST" and form.carry_out(act):
        messages.success(request, f"{name} is changed. It holds from the next request on.")
        return HttpResponseRedirect(place.url("member", found.public_id))
    context = {
        "form": form,
        "title": f"Change {name}",
        "text": "Limits hold for all keys of the member together; the account's own limits hold besides.",
        "button": "Change it",
        "columns": True,
        "back": place.url("member", id),
    }
    return render(request, place, "console/form_page.html", context)


@page("members/<uuid:id>/remove", "member-remove", at=At.TENANT, role=Role.OWNER, post=True)
def remove(request: HttpRequest, place: TenantPlace, id: UUID) -> HttpResponse:
    found = membership.find_member(place.tenant, id)
    caller, name = place.caller, str(found.user)
    own = caller.member is not None and caller.member.pk == found.pk
    return confirm(
        request,
        place,
        lambda: membership.dismiss(caller, found),
        title=f"Remove {name} from {found.tenant.slug}?",
        effects=_effects(found),
        button="Remove",
        done=f"{name} is no member any more.",
        back=_back(request, place, own, place.url("members") if request.method == "POST" else place.url("member", id)),
    )


@page("members/leave", "leave", at=At.TENANT, post=True)
def leave(request: HttpRequest, place: TenantPlace) -> HttpResponse:
    caller = place.caller
    found = caller.member
    if found is None:
        context = {
            "title": "There is nothing to leave",
            "text": "You work here as an operator of the platform, and are no member.",
            "advice": "",
        }
        return render(request, place, "console/problem.html", context)
    return confirm(
        request,
        place,
        lambda: membership.dismiss(caller, found),
        title=f"Leave {found.tenant.display_name}?",
        effects=[*_effects(found), "Only an owner can invite you again."],
        button="Leave",
        done=f"You are no member of {found.tenant.display_name} any more.",
        back=_back(request, place, True, place.url("members")),
    )


def _back(request: HttpRequest, place: Place, own: bool, otherwise: str) -> str:
    """Whoever left has no page here any more."""
    return reverse("console:home") if own and request.method == "POST" and place.operator is None else otherwise


def _effects(member: Member) -> list[str]:
    keys = ApiKey.objects.filter(tenant=member.tenant_id, member=member, revoked_at=None).count()
    running = InferenceRequest.objects.running().filter(tenant=member.tenant_id, member_id=member.pk).count()
    opened = Invitation.objects.filter(
        tenant=member.tenant_id, invited_by=member, accepted_at=None, revoked_at=None, expires_at__gt=timezone.now()
    ).count()
    return [
        f"{counted(keys, 'key')} will be revoked, for good.",
        f"{counted(running, 'running request')} will end within seconds; what was generated is billed.",
        f"{counted(opened, 'open invitation')} of theirs will be void.",
        "Their requests stay in the ledger, and their other accounts as they are.",
    ]
