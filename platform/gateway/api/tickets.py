from __future__ import annotations

from django.http import HttpRequest
from ninja import Router, Schema

from gateway import tickets
from gateway.api.auth import Key, access, services
from gateway.frames import PROTOCOL

router = Router(tags=["websocket"], auth=Key())


class Ticket(Schema):
    """``ticket`` opens one WebSocket at ``url`` within ``expires_in`` seconds.

    Send it as a subprotocol: ``["loraplex.v1", "ticket.<ticket>"]``.
    """

    ticket: str
    expires_in: int
    protocol: str
    url: str


@router.post("/api/ws-tickets", response={201: Ticket}, summary="A single-use ticket for a browser's WebSocket")
async def create_ticket(request: HttpRequest) -> tuple[int, Ticket]:
    ticket = await tickets.issue(services(request).pool, access(request))
    return 201, Ticket(ticket=ticket, expires_in=tickets.LIFETIME_SECONDS, protocol=PROTOCOL, url="/v1/ws")
