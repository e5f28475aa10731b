"""Operators' endpoint: prefixes, such as a shared system prompt, whose cached blocks all tenants may reuse.

A hit on one tells that somebody used it lately, which is the operator's text and no tenant's; what follows it stays in
the tenant's own namespace. A prefix counts in full blocks, for the base model or for one adapter, and is computed by
the first request that begins with it. A worker forgets its prefixes when it stops: the platform declares them again.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from inference.front.bodies import checked, load_object
from inference.front.errors import ApiError
from inference.front.field_checks import invalid, messages, text
from inference.front.service import Service
from inference.prefix_id import prefix_id
from inference.request_fields import token_ids


@dataclass(frozen=True, slots=True)
class PublicPrefix:
    """One declared prefix as it is listed. ``shared_tokens`` are those in full blocks."""

    id: str
    model: str
    tokens: int
    shared_tokens: int
    created: int
    object: str = "public_prefix"


async def declare(request: Request) -> Response:
    """Make the full blocks of ``prompt``, ``messages`` or ``tokens`` public; the same again changes nothing."""
    service, prefixes = _state(request)
    fields = {"model": text, "prompt": text, "messages": messages, "tokens": token_ids}
    values = checked(load_object(await service.read_body(request)), fields)
    model = values.get("model", service.served_name)
    adapter = None if model == service.served_name else service.names.get(model, model)
    if adapter is not None and not _is_digest(adapter):
        raise invalid("model", "model is neither the base model, nor a loaded adapter's name, nor an adapter's digest")
    tokens = await _tokens(service, values)
    ready = service.link.ready
    if len(tokens) < ready.block_size:
        raise invalid("prompt", f"The prefix has {len(tokens)} tokens; a block of the cache has {ready.block_size}")
    if len(tokens) > ready.max_model_len:
        raise invalid("prompt", f"The prefix has {len(tokens)} tokens; a request may have {ready.max_model_len}")
    if max(tokens) >= ready.vocab_size:
        raise invalid("tokens", f"tokens: token ids must be below {ready.vocab_size}")
    name = prefix_id(adapter, tokens)
    await service.link.declare_prefix(name, adapter, tokens)
    shared = len(tokens) // ready.block_size * ready.block_size
    prefix = PublicPrefix(name, adapter or service.served_name, len(tokens), shared, int(time.time()))
    return _json(asdict(prefixes.setdefault(name, prefix)))


async def listed(request: Request) -> Response:
    """What is declared now."""
    _, prefixes = _state(request)
    return _json({"object": "list", "data": [asdict(prefix) for prefix in prefixes.values()]})


async def withdraw(request: Request) -> Response:
    """From now on every tenant computes it for itself again."""
    service, prefixes = _state(request)
    name = request.path_params["name"]
    if name not in prefixes:
        raise ApiError(404, "There is no such public prefix", "not_found", "id")
    await service.link.withdraw_prefix(name)
    prefixes.pop(name, None)
    return _json({"id": name, "object": "public_prefix", "deleted": True})


def _state(request: Request) -> tuple[Service, dict[str, PublicPrefix]]:
    service: Service = request.app.state.service
    service.check_operator(request)
    return service, request.app.state.public_prefixes


async def _tokens(service: Service, values: dict[str, Any]) -> list[int]:
    given = [name for name in ("prompt", "messages", "tokens") if name in values]
    if len(given) != 1:
        raise invalid("prompt", "Exactly one of prompt, messages and tokens is needed")
    if "tokens" in values:
        return list(values["tokens"])
    if "messages" in values:
        # Without the beginning of an answer: a conversation goes on with the next message.
        render = partial(service.renderer.encode_chat, add_generation_prompt=False)
        return await asyncio.to_thread(render, values["messages"])
    return await asyncio.to_thread(service.renderer.encode, values["prompt"], add_special_tokens=True)


def _is_digest(name: str) -> bool:
    return len(name) == 64 and all(letter in "0123456789abcdef" for letter in name)


def _json(data: Any) -> Response:
    return Response(orjson.dumps(data), media_type="application/json")
