from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from django.http import HttpRequest
from ninja import Schema
from pydantic import ConfigDict, Field

from gateway.api.callers import TenantKey, caller
from gateway.api.members import RoleName
from gateway.api.mutations import ONCE, Body, management_router
from gateway.api.pages import Page, Wanted, page
from tenants import invitations
from tenants.callers import Role
from tenants.links import deliver
from tenants.models import Invitation as InvitationRow

router = management_router("invitations", TenantKey(Role.OWNER))


class Invitation(Schema):
    """``expired`` and ``revoked`` ones stay in the list, ``accepted`` ones too."""

    id: str
    object: Literal["invitation"] = "invitation"
    email: str
    role: RoleName
    state: Literal["open", "accepted", "revoked", "expired"]
    created_at: datetime
    expires_at: datetime


class NewInvitation(Invitation):
    """``link`` is shown only now. Where the installation has a mail server it is mailed instead, and ``null`` here: the
    mailed link proves whose the address is.
    """

    link: Annotated[str | None, Field(json_schema_extra=ONCE)]


class InvitationBody(Body):
    model_config = ConfigDict(json_schema_extra={"examples": [{"email": "ada@example.org", "role": "developer"}]})

    email: Annotated[str, Field(max_length=150, description="An earlier open invitation of this address is void then.")]
    role: RoleName = "viewer"


def _fields(row: InvitationRow) -> dict[str, Any]:
    return {
        "id": str(row.pk),
        "email": row.email,
        "role": row.role,
        "state": row.state,
        "created_at": row.created_at,
        "expires_at": row.expires_at,
    }


def shown(row: InvitationRow) -> Invitation:
    return Invitation(**_fields(row))


@router.get("/api/invitations", response=Page[Invitation], summary="Who was invited, newest first")
def list_invitations(request: HttpRequest, window: Wanted) -> dict[str, Any]:
    return page(InvitationRow.objects.filter(tenant=caller(request).tenant), window, shown, name="pk")


@router.post("/api/invitations", response={201: NewInvitation}, summary="Invite somebody by e-mail address")
def create_invitation(request: HttpRequest, body: InvitationBody) -> tuple[int, NewInvitation]:
    asking = caller(request)
    row, token = invitations.invite(asking.actor, asking.tenant, body.email, Role(body.role), by=asking.member)
    link = deliver(row, token)
    return 201, NewInvitation(**_fields(row), link=None if link is None else link.reveal())


@router.get("/api/invitations/{invitation_id}", response=Invitation, summary="One invitation")
def get_invitation(request: HttpRequest, invitation_id: str) -> Invitation:
    return shown(invitations.find_invitation(caller(request).tenant, invitation_id))


@router.delete("/api/invitations/{invitation_id}", response={204: None}, summary="Take an invitation back")
def revoke_invitation(request: HttpRequest, invitation_id: str) -> tuple[int, None]:
    asking = caller(request)
    invitations.revoke_invitation(asking.actor, invitations.find_invitation(asking.tenant, invitation_id))
    return 204, None
