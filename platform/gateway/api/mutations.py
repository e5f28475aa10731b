"""Each mutation is one transaction, and with an ``Idempotency-Key`` it happens once."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from hashlib import sha256
from typing import Any

import orjson
from django.core.files.uploadedfile import UploadedFile
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from ninja import Router
from ninja.responses import NinjaJSONEncoder
from pydantic import BaseModel, ConfigDict
from pydantic.config import JsonDict

from gateway.errors import bad_request
from tenants import once as tenants_once

HEADER = "Idempotency-Key"
MOST_KEY = 255
REPLAYED = "Idempotency-Replayed"
ONCE: JsonDict = {"once": True}
"""``Field(json_schema_extra=ONCE)``: shown when the object is made and never again, so a repetition says ``null``."""

_FORM = "reads_form"

View = Callable[..., Any]


class Body(BaseModel):
    """Base of every mutation's body: strict types, unknown fields refused by name."""

    model_config = ConfigDict(extra="forbid", strict=True)


def management_router(tag: str, auth: Any) -> Router:
    """A router of plain (not ``async``) operations. What changes something runs in one transaction with its audit
    entry, and once for each ``Idempotency-Key``; it returns a :class:`~pydantic.BaseModel`, ``(status, model)`` or
    ``(204, None)``.
    """
    router = Router(tags=[tag], auth=auth)
    router.add_decorator(_once, mode="operation")
    return router


def _once(view: View) -> View:
    @wraps(view)
    def run(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        if request.method in {"GET", "HEAD"}:
            return view(request, *args, **kwargs)
        key = request.headers.get(HEADER)
        with transaction.atomic():
            if key is None:
                return view(request, *args, **kwargs)
            caller: str = request.auth.name  # type: ignore[attr-defined]
            said = _form(request) if hasattr(view, _FORM) else request.body
            return once(caller, key, _fingerprint(request, said), lambda: view(request, *args, **kwargs))

    return run


def _checked(key: str) -> str:
    if not 0 < len(key) <= MOST_KEY or not key.isascii() or not key.isprintable():
        raise bad_request(f"{HEADER} has to be 1 to {MOST_KEY} printable ASCII characters.", HEADER)
    return key


def once(caller: str, key: str, fingerprint: bytes, view: Callable[[], Any]) -> Any:
    """What ``view`` returns, or (an ``HttpResponse``) what it answered to the same request before. In a transaction.

    A second request with the key waits here for the first one's transaction.
    """
    found = tenants_once.once(caller, _checked(key), fingerprint, view, _kept)
    if not isinstance(found, tenants_once.Repeated):
        return found
    headers = {REPLAYED: "true"}
    return HttpResponse(found.body, status=found.status, content_type="application/json", headers=headers)


def _kept(result: Any) -> tuple[int, bytes]:
    status, body = result if isinstance(result, tuple) else (200, result)
    return status, b"" if body is None else _saved(body)


def _fingerprint(request: HttpRequest, said: bytes) -> bytes:
    head = f"{request.method} {request.get_full_path()}\0".encode()
    return sha256(head + said).digest()


def reads_form(view: View) -> View:
    """Marks a view whose body is multipart/form-data: each time it is sent, its parts have other boundaries."""
    setattr(view, _FORM, True)
    return view


def _form(request: HttpRequest) -> bytes:
    """What stands in the form, whatever is between its parts."""
    sent = [(name, file) for name, files in sorted(request.FILES.lists()) for file in files]
    found = [(name, file.name, _digest(file)) for name, file in sent]
    return orjson.dumps([sorted(request.POST.lists()), found])


def _digest(file: UploadedFile[Any]) -> str:
    digest = sha256()
    for chunk in file.chunks():  # from its beginning each time
        digest.update(chunk)
    return digest.hexdigest()


def _saved(body: BaseModel) -> bytes:
    """As ninja writes the first answer, times to the millisecond, without what is shown only once."""
    found = body.model_dump()
    for name, field in type(body).model_fields.items():
        if field.json_schema_extra == ONCE:
            found[name] = None
    return orjson.dumps(found, NinjaJSONEncoder().default, orjson.OPT_PASSTHROUGH_DATETIME)
