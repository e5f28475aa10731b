from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from django.http import HttpRequest
from ninja import Schema
from pydantic import ConfigDict, Field

from gateway.api.callers import OperatorBearer, operator
from gateway.api.moments import Moment
from gateway.api.mutations import ONCE, Body, management_router
from gateway.api.pages import Page, Wanted, page
from gateway.api.text import Text
from tenants import operator_keys
from tenants.models import OperatorKey

router = management_router("operators: keys", OperatorBearer())


class OperatorKeyObject(Schema):
    """A key to this API without its secret. ``name`` is what the audit log calls it."""

    id: str
    object: Literal["operator_key"] = "operator_key"
    name: str
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None = Field(description="To the minute.")


class NewOperatorKey(OperatorKeyObject):
    """``api_key`` is the key itself: shown now, stored nowhere."""

    api_key: str | None = Field(json_schema_extra=ONCE)


class OperatorKeyIssue(Body):
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"name": "dashboard", "expires_at": "2030-01-31T00:00:00Z"}]}
    )

    name: Text = Field(min_length=1, max_length=100, description="Who or what uses it; no name is given out twice.")
    expires_at: Annotated[Moment | None, Field(description="`null`: never.")] = None


def _fields(key: OperatorKey) -> dict[str, Any]:
    moments = ("created_at", "expires_at", "revoked_at", "last_used_at")
    return {"id": key.public_id, "name": key.name} | {name: getattr(key, name) for name in moments}


@router.get("/api/operator/keys", response=Page[OperatorKeyObject], summary="Operators' keys, by name")
def list_operator_keys(request: HttpRequest, window: Wanted) -> dict[str, Any]:
    rows = OperatorKey.objects.all()
    return page(rows, window, lambda key: OperatorKeyObject(**_fields(key)), name="public_id", order="name")


@router.post(
    "/api/operator/keys", response={201: NewOperatorKey}, summary="Issue an operator's key; its text is shown once"
)
def issue_operator_key(request: HttpRequest, body: OperatorKeyIssue) -> tuple[int, NewOperatorKey]:
    key, secret = operator_keys.issue(operator(request).actor, body.name, expires_at=body.expires_at)
    return 201, NewOperatorKey(**_fields(key), api_key=secret.reveal())


@router.post("/api/operator/keys/{key_id}/revoke", response=OperatorKeyObject, summary="Revoke an operator's key")
def revoke_operator_key(request: HttpRequest, key_id: str) -> OperatorKeyObject:
    """Refused from the next request on; it stays in the list."""
    key = operator_keys.find(key_id)
    operator_keys.revoke(operator(request).actor, key)
    return OperatorKeyObject(**_fields(key))
