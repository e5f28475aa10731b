from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from ninja import Router

from gateway.api.auth import services
from gateway.api.callers import OperatorBearer

router = Router(tags=["operator"], auth=OperatorBearer())


@router.get("/metrics", include_in_schema=False)
def metrics(request: HttpRequest) -> HttpResponse:
    """Of the process that answers: where several share a port, each scrape meets one of them."""
    shared = services(request)
    text = shared.meters.text(running=len(shared.running), sockets=len(shared.sockets))
    return HttpResponse(text, content_type="text/plain; version=0.0.4; charset=utf-8")
