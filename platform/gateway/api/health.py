from __future__ import annotations

from typing import Literal

from django.http import HttpRequest
from ninja import Router, Schema

from gateway.api.auth import services

router = Router(tags=["health"])


class Health(Schema):
    status: Literal["ok", "draining"]


@router.get("/health", response={200: Health, 503: Health}, summary="Whether this process takes requests")
async def health(request: HttpRequest) -> tuple[int, Health]:
    if services(request).draining:
        return 503, Health(status="draining")
    return 200, Health(status="ok")
