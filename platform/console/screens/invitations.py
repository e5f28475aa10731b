from __future__ import annotations

from typing import Any
from uuid import UUID

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect

from console.confirm import confirm
from console.forms import posted
from console.listing import listing, searched
from console.member_forms import Invite
from console.pages import At, page
from console.place import TenantPlace
from console.render import render
from tenants import invitations
from tenants.callers import Role
from tenants.keys import Secret
from tenants.links import deliver
from tenants.models import Invitation, Member


@page("members/invitations", "invitations", at=At.TENANT, role=Role.OWNER)
def invited(request: HttpRequest, place: TenantPlace) -> HttpResponse:
    rows = Invitation.objects.filter(tenant=place.tenant).select_related("invited_by__user")
    query = searched(request)
    if query:
        rows = rows.filter(email__icontains=query)
    return render(request, place, "console/members_invitations.html", {"listing": listing(request, rows)})


@page("members/invite", "invite", at=At.TENANT, role=Role.OWNER, post=True)
def invite(request: HttpRequest, place: TenantPlace) -> HttpResponse:
    """The link is in this answer alone, or in the mail: loaded again, the page says so and makes no other."""
    caller = place.caller
    owners = Member.objects.filter(tenant=caller.tenant, role=Member.Role.OWNER)
    form = Invite(posted(request), initial={"role": str(Role.VIEWER if owners.exists() else Role.OWNER)})

    def act(data: dict[str, Any]) -> tuple[str, tuple[Secret | None]]:
        row, token = invitations.invite(
            caller.actor, caller.tenant, data["email"], Role(data["role"]), by=caller.member
        )
        return str(row.pk), (deliver(row, token),)

    if request.method == "POST" and form.carry_out_once(request, place, act):
        row = invitations.find_invitation(caller.tenant, form.made)
        if form.result is None:
            return render(request, place, "console/members_invited.html", {"invitation": row, "link": None})
        (link,) = form.result
        if link is None:
            messages.success(request, f"{row.email} is invited by mail. If it does not arrive, invite again.")
            return HttpResponseRedirect(place.url("invitations"))
        shown = {"invitation": row, "link": link.reveal()}
        return render(request, place, "console/members_invited.html", shown)
    context = {"form": form, "title": "Invite somebody", "button": "Invite", "back": place.url("members")}
    return render(request, place, "console/form_page.html", context)


@page("members/invitations/<uuid:id>/revoke", "invitation-revoke", at=At.TENANT, role=Role.OWNER, post=True)
def revoke(request: HttpRequest, place: TenantPlace, id: UUID) -> HttpResponse:
    found = invitations.find_invitation(place.tenant, id)
    return confirm(
        request,
        place,
        lambda: invitations.revoke_invitation(place.actor, found),
        title=f"Take back the invitation of {found.email}?",
        effects=["Its link opens nothing any more.", f"{found.email} can be invited again at any time."],
        button="Take it back",
        done=f"The invitation of {found.email} is void.",
        back=place.url("invitations"),
    )
