from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from django.http import HttpRequest
from ninja import Schema
from pydantic import BaseModel, ConfigDict, Field

from fleet import public_prefixes
from fleet.models import PublicPrefix
from gateway.api.callers import OperatorBearer, operator
from gateway.api.mutations import Body, management_router
from gateway.api.pages import Page, Wanted, page
from gateway.api.text import Text
from tenants import adapters, base_models

router = management_router("operators: public prefixes", OperatorBearer())


class PrefixMessage(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    role: Literal["system", "user", "assistant"]
    content: Text


class PublicPrefixObject(Schema):
    """What all tenants' prompts may share. ``shared_tokens``: those in full blocks of the cache, which count."""

    name: str
    object: Literal["public_prefix"] = "public_prefix"
    model: str
    adapter: str | None = Field(description="for what this adapter stands for; `null`: for the base model alone")
    prompt: str | None
    messages: list[PrefixMessage] | None
    tokens: int
    shared_tokens: int
    created_at: datetime


class NewPublicPrefix(Body):
    """Exactly one of ``prompt`` and ``messages``."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "name": "support",
                "model": "smollm2-135m-instruct",
                "messages": [{"role": "system", "content": "You are the assistant of Initech. …"}],
            }
        }
    )

    name: Text = Field(max_length=64, description="letters, digits, hyphens, underscores")
    model: Text = Field(max_length=100, description="the base model")
    adapter: Text | None = Field(None, max_length=200, description="`owner/name`: for it instead of the base model")
    messages: list[PrefixMessage] | None = Field(None, min_length=1, max_length=public_prefixes.MOST_MESSAGES)
    prompt: Text | None = Field(None, max_length=public_prefixes.MOST_CHARACTERS, description="of completions")


def _shown(prefix: PublicPrefix) -> PublicPrefixObject:
    return PublicPrefixObject(
        name=prefix.name,
        model=prefix.base_model.name,
        adapter=None if prefix.adapter is None else str(prefix.adapter),
        prompt=prefix.source.get("prompt"),
        messages=prefix.source.get("messages"),
        tokens=len(prefix.tokens),
        shared_tokens=public_prefixes.shared_tokens(prefix),
        created_at=prefix.created_at,
    )


@router.get("/api/operator/public-prefixes", response=Page[PublicPrefixObject], summary="All public prefixes, by name")
def list_public_prefixes(request: HttpRequest, window: Wanted) -> dict[str, Any]:
    rows = PublicPrefix.objects.select_related("base_model", "adapter__tenant")
    return page(rows, window, _shown, name="name", order="name")


@router.post(
    "/api/operator/public-prefixes",
    response={201: PublicPrefixObject},
    summary="Have all tenants share the beginning of prompts",
)
def declare_public_prefix(request: HttpRequest, body: NewPublicPrefix) -> tuple[int, PublicPrefixObject]:
    """On every worker of the base model within seconds, and again after its restart."""
    prefix = public_prefixes.declare(
        operator(request).actor,
        body.name,
        base_models.find(body.model, "model"),
        prompt=body.prompt,
        messages=None if body.messages is None else [message.model_dump() for message in body.messages],
        adapter=None if body.adapter is None else adapters.named(body.adapter, "adapter"),
    )
    return 201, _shown(prefix)


@router.get("/api/operator/public-prefixes/{name}", response=PublicPrefixObject, summary="One public prefix")
def get_public_prefix(request: HttpRequest, name: str) -> PublicPrefixObject:
    return _shown(public_prefixes.find(name))


@router.delete("/api/operator/public-prefixes/{name}", response={204: None}, summary="Have nobody share it from now on")
def withdraw_public_prefix(request: HttpRequest, name: str) -> tuple[int, None]:
    public_prefixes.withdraw(operator(request).actor, public_prefixes.find(name))
    return 204, None
