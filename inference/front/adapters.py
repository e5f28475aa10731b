"""Operators' endpoints: which models there are, loading and unloading adapters, tokenising."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from inference.adapter_format import content_digest, store_path
from inference.errors import AdapterNotFound
from inference.front.bodies import checked, load_object
from inference.front.errors import ApiError
from inference.front.field_checks import invalid, messages, text
from inference.front.service import Service
from inference.request_fields import boolean, token_ids

STARTED = int(time.time())


async def models(request: Request) -> Response:
    """The base model, then the adapters that are resident, under their digests and names."""
    service: Service = request.app.state.service
    service.check_operator(request)
    resident = service.link.stats.resident
    named = [name for name, digest in service.names.items() if digest in resident]

    def card(name: str, parent: str | None, root: str) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": STARTED,
            "owned_by": "loraplex",
            "root": root,
            "parent": parent,
            "max_model_len": service.link.ready.max_model_len,
        }

    base = service.served_name
    cards = [card(base, None, base), *(card(digest, base, digest) for digest in resident)]
    cards += [card(name, base, service.names[name]) for name in named]
    return _json({"object": "list", "data": cards})


async def load(request: Request) -> Response:
    """vLLM's answers: 200 in plain text, 400 for what is loaded already or is no adapter, 404 for what is not there.

    ``lora_path`` may be left out where ``lora_name`` is the digest of an adapter in this worker's own store.
    """
    service: Service = request.app.state.service
    service.check_operator(request)
    fields = {"lora_name": text, "lora_path": text}
    values = checked(load_object(await service.read_body(request)), fields)
    if "lora_name" not in values:
        raise invalid("lora_name", "lora_name is missing", "missing_parameter")
    name = values["lora_name"]
    if name == service.served_name:
        raise invalid("lora_name", "lora_name is the base model's name")
    path = values.get("lora_path") or str(_stored(service, name))
    directory = await asyncio.to_thread(_allowed, service, path)
    digest = await asyncio.to_thread(content_digest, directory)
    stored = directory == store_path(service.adapter_store, digest)
    if stored and name != digest:
        raise invalid("lora_name", "lora_name of an adapter in the store must be its content digest")
    if service.names.get(name, digest) != digest:
        raise invalid("lora_name", f"lora_name {name} is taken by another adapter; unload it first")
    await service.link.load_adapter(digest, None if stored else str(directory))
    if name != digest:
        service.names[name] = digest
    return PlainTextResponse(f"Success: LoRA adapter '{name}' added successfully.")


async def unload(request: Request) -> Response:
    """200 in plain text; 404 for what is not loaded. Requests that use the adapter end first."""
    service: Service = request.app.state.service
    service.check_operator(request)
    fields = {"lora_name": text, "lora_int_id": lambda name, value: value}
    values = checked(load_object(await service.read_body(request)), fields)
    if "lora_name" not in values:
        raise invalid("lora_name", "lora_name is missing", "missing_parameter")
    name = values["lora_name"]
    digest = service.names.get(name, name)
    try:
        await service.link.unload_adapter(digest)
    finally:
        # Also when it was evicted before: the name must be free for another adapter.
        service.names = {other: target for other, target in service.names.items() if target != digest}
    return PlainTextResponse(f"Success: LoRA adapter '{name}' removed successfully.")


async def tokenize(request: Request) -> Response:
    """Ids of a ``prompt`` or of ``messages``."""
    service: Service = request.app.state.service
    service.check_operator(request)
    fields = {"model": text, "prompt": text, "messages": messages, "add_special_tokens": boolean}
    values = checked(load_object(await service.read_body(request)), fields)
    if ("prompt" in values) == ("messages" in values):
        raise invalid("prompt", "Exactly one of prompt and messages is needed")
    if "messages" in values:
        ids = await asyncio.to_thread(service.renderer.encode_chat, values["messages"])
    else:
        special = values.get("add_special_tokens", True)
        ids = await asyncio.to_thread(service.renderer.encode, values["prompt"], add_special_tokens=special)
    return _json({"count": len(ids), "max_model_len": service.link.ready.max_model_len, "tokens": ids})


async def detokenize(request: Request) -> Response:
    service: Service = request.app.state.service
    service.check_operator(request)
    values = checked(load_object(await service.read_body(request)), {"model": text, "tokens": token_ids})
    if "tokens" not in values:
        raise invalid("tokens", "tokens is missing", "missing_parameter")
    if max(values["tokens"], default=0) >= service.link.ready.vocab_size:
        raise invalid("tokens", f"tokens: token ids must be below {service.link.ready.vocab_size}")
    return _json({"prompt": service.renderer.decode(values["tokens"])})


def _stored(service: Service, name: str) -> Path:
    try:
        return store_path(service.adapter_store, name)
    except AdapterNotFound:
        raise invalid("lora_path", "lora_path is missing, and lora_name is no digest", "missing_parameter") from None


def _allowed(service: Service, path: str) -> Path:
    """The directory behind ``path`` with links resolved; it must lie in the store or in an adapter root."""
    try:
        directory = Path(path).resolve(strict=True)
    except (OSError, ValueError, RuntimeError) as error:
        raise AdapterNotFound("lora_path does not exist or lies outside the adapter store") from error
    if not any(directory.is_relative_to(root) for root in (service.adapter_store, *service.adapter_roots)):
        raise AdapterNotFound("lora_path does not exist or lies outside the adapter store")
    if not directory.is_dir():
        raise ApiError(400, "lora_path is not a directory", "invalid_value", "lora_path")
    return directory


def _json(data: Any) -> Response:
    return Response(orjson.dumps(data), media_type="application/json")
