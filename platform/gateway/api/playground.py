from __future__ import annotations

from typing import Annotated

from django.http import HttpRequest
from ninja import Schema
from pydantic import ConfigDict, Field

from gateway import tickets
from gateway.api.callers import TenantKey, caller
from gateway.api.mutations import ONCE, Body, management_router
from gateway.frames import PROTOCOL
from tenants import playground, visits
from tenants.callers import Role

router = management_router("websocket", TenantKey(Role.DEVELOPER))


class PlaygroundTicketIssue(Body):
    model_config = ConfigDict(json_schema_extra={"examples": [{"new_key": False}]})

    new_key: Annotated[bool, Field(description="Issue another key where the last one was revoked or has expired.")] = (
        False
    )


class PlaygroundTicket(Schema):
    """``ticket`` opens one WebSocket at ``url`` within ``expires_in`` seconds, with the rights of the key ``key_id``.

    Send it as a subprotocol: ``["loraplex.v1", "ticket.<ticket>"]``.
    """

    ticket: str | None = Field(json_schema_extra=ONCE)
    expires_in: int
    protocol: str
    url: str
    key_id: str


PLAIN = PlaygroundTicketIssue()


@router.post(
    "/api/playground-tickets",
    response={201: PlaygroundTicket},
    summary="A single-use ticket for the WebSocket of somebody signed in",
)
def create_playground_ticket(request: HttpRequest, body: PlaygroundTicketIssue = PLAIN) -> tuple[int, PlaygroundTicket]:
    """It is of your own inference key `playground`, made when it is first needed, listed, limited and billed as any
    other. Where that was revoked, 409 `playground_key_ended`: `new_key` makes another. Signing out, a new password and
    losing the role void it, and end what it opened. For sessions only: with a key, 403 `permission_denied`.
    """
    found = caller(request)
    key = playground.ready(found, new_key=body.new_key)
    assert found.user is not None  # ready() refuses whoever is not signed in
    assert request.session.session_key is not None
    return 201, PlaygroundTicket(
        ticket=tickets.issue_within(key.pk, visits.begun(found.user, request.session.session_key)),
        expires_in=tickets.LIFETIME_SECONDS,
        protocol=PROTOCOL,
        url="/v1/ws",
        key_id=key.public_id,
    )
