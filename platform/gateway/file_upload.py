"""``POST /v1/files``, served ahead of Django: the file goes to disk while it arrives, and only for who may send it."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar
from uuid import UUID

import orjson
from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.conf import settings
from django.db import connections, transaction
from django.http import HttpResponse
from uuid6 import uuid7

from gateway.api.files import File, shown
from gateway.api.mutations import HEADER, REPLAYED, once
from gateway.api.openai_keys import caller_for
from gateway.auth import address_of, bearer
from gateway.border import Application, check_host
from gateway.consumers import services_of
from gateway.errors import ApiError, bad_request, body_too_large, body_too_late, error_of
from gateway.http import Send, send_json
from gateway.multipart import FileForm
from gateway.ratelimit import limits_of, rate_limit_headers
from gateway.transport import ClientGone
from gateway.visitors import caller_of_page, has_token
from inference.safetensors_header import printable
from tenants import denials, files
from tenants.callers import Caller, Role
from tenants.rows import hold_tenant

UPLOAD_SECONDS = 900.0
STALL_SECONDS = 30.0
"""A client that sends nothing for so long has left."""

MOST_UPLOADS = 4
"""At once, of one tenant, in one process: what arrives is on no quota yet."""

_FORM_BYTES = 64 << 10
"""What a form has beside its file."""

_ANCHOR, _SECONDS = "expires_after[anchor]", "expires_after[seconds]"
_NAMES = frozenset({"purpose", _ANCHOR, _SECONDS})
Result = TypeVar("Result")
Receive = Callable[[], Awaitable[dict[str, Any]]]


class FileUpload:
    """:param others: serves the other methods of this path."""

    def __init__(self, others: Application) -> None:
        self._others = others
        self._uploads: Counter[UUID] = Counter()

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        if scope["method"] != "POST":
            await self._others(scope, receive, send)
            return
        pool = services_of(scope).pool
        callers: list[Caller] = []
        try:
            with denials.collected(pool):
                body, headers = await self._take(scope, receive, callers)
            status = 200
        except ClientGone:
            return
        except Exception as error:
            found = error_of(error)
            status, body, headers = found.status, found.payload(), found.all_headers()
        if callers and status != 401:
            headers |= rate_limit_headers(await limits_of(pool, callers[0]))
        await send_json(send, status, body, {"x-request-id": str(uuid7())} | headers)

    async def _take(
        self, scope: dict[str, Any], receive: Receive, callers: list[Caller]
    ) -> tuple[bytes, dict[str, str]]:
        """:param callers: whose it is, once that is known."""
        check_host(scope["headers"])
        door, most = _door(scope), settings.MAX_FILE_BYTES
        declared = _header(scope, b"content-length")
        size = int(declared) if declared.isdigit() else 0
        if size > most + _FORM_BYTES:
            raise body_too_large(most)
        async with ThreadSensitiveContext():
            caller = await _orm(lambda: _admit(door, max(size - _FORM_BYTES, 0), callers))
            async with self._place(caller), _content() as path:
                form = FileForm(_header(scope, b"content-type"), path, _NAMES, most)
                try:
                    await _read(form, receive)
                    digest = await form.finish()
                finally:
                    form.close()
                return await _orm(lambda: _register(door, caller, form, path, digest=digest, key=_key(scope)))

    @asynccontextmanager
    async def _place(self, caller: Caller) -> AsyncIterator[None]:
        tenant = caller.tenant.pk
        if self._uploads[tenant] >= MOST_UPLOADS:
            message = f"{MOST_UPLOADS} files are being uploaded already; try again shortly."
            if caller.key is not None:
                denials.tell(tenant, caller.key.pk, "rate_limit_exceeded", message)
            raise ApiError(429, "rate_limit_exceeded", message, retry_after=5.0)
        self._uploads[tenant] += 1
        try:
            yield
        finally:
            self._uploads[tenant] -= 1
            if not self._uploads[tenant]:
                del self._uploads[tenant]


def _header(scope: dict[str, Any], name: bytes) -> bytes:
    found: bytes = next((value for key, value in scope["headers"] if key == name), b"")
    return found


def _key(scope: dict[str, Any]) -> str | None:
    """Of its repetitions. One that is sent empty is no key, but sent."""
    name = HEADER.lower().encode()
    return next((value.decode("latin-1") for key, value in scope["headers"] if key == name), None)


async def _orm(work: Callable[[], Result]) -> Result:
    """In a thread of this upload's own, whose connection goes with it."""

    def run() -> Result:
        try:
            return work()
        finally:
            connections.close_all()

    return await sync_to_async(run, thread_sensitive=True)()


@asynccontextmanager
async def _content() -> AsyncIterator[Path]:
    """Where the upload may be written; whatever still lies there in the end goes."""
    path = await asyncio.to_thread(files.incoming)
    try:
        yield path
    finally:
        await asyncio.shield(asyncio.to_thread(path.unlink, missing_ok=True))


async def _read(form: FileForm, receive: Receive) -> None:
    deadline = asyncio.get_running_loop().time() + UPLOAD_SECONDS
    while True:
        now = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(min(STALL_SECONDS, deadline - now)):
                message = await receive()
        except TimeoutError:
            raise body_too_late(UPLOAD_SECONDS if now + STALL_SECONDS > deadline else STALL_SECONDS) from None
        if message["type"] == "http.disconnect":
            raise ClientGone
        await form.feed(message.get("body", b""))
        if not message.get("more_body"):
            return


def _door(scope: dict[str, Any]) -> Callable[[], Caller]:
    """A key, or the session of the console's page from which it is sent. Raises as :func:`~gateway.auth.bearer`."""
    if has_token(scope):
        return lambda: caller_of_page(scope, Role.DEVELOPER)
    secret = bearer(scope["headers"])
    return lambda: caller_for(secret, address_of(scope), changes=True)


def _admit(door: Callable[[], Caller], size: int, callers: list[Caller]) -> Caller:
    """Refuses early what :func:`_register` would refuse after the last byte."""
    caller = door()
    callers.append(caller)
    files.check_room(caller.tenant, size)
    return caller


def _register(
    door: Callable[[], Caller], caller: Caller, form: FileForm, path: Path, *, digest: bytes, key: str | None
) -> tuple[bytes, dict[str, str]]:
    """The file, for whoever may still send it: ``door`` is asked again, for :data:`UPLOAD_SECONDS` are long enough to
    revoke a key, to demote its member or to sign out.
    """
    purpose = form.fields.get("purpose")
    if purpose is None:
        raise bad_request("purpose is required.", "purpose", "missing_required_parameter")
    if purpose != "batch":
        raise bad_request("purpose has to be batch: other files have no use here.", "purpose")
    kept = _kept(form.fields)

    def view() -> File:
        hold_tenant(caller.tenant.pk)  # first: who waits in line here is asked after that
        now = door()
        return shown(files.receive(now.actor, now.tenant, path, _name(form.filename), kept))

    with transaction.atomic():
        if key is None:
            return orjson.dumps(view().model_dump()), {}
        told = orjson.dumps(["POST /v1/files", form.filename, form.fields], option=orjson.OPT_SORT_KEYS)
        answer = once(caller.name, key, hashlib.sha256(told + digest).digest(), view)
        if isinstance(answer, HttpResponse):
            door()  # of a repetition it was not asked yet
    if isinstance(answer, HttpResponse):
        return answer.content, {REPLAYED: "true"}
    return orjson.dumps(answer.model_dump()), {}


def _kept(fields: dict[str, str]) -> timedelta:
    anchor, seconds = fields.get(_ANCHOR), fields.get(_SECONDS)
    if seconds is not None and not (seconds.isascii() and seconds.isdigit() and len(seconds) <= 9):
        raise bad_request("expires_after.seconds has to be a whole number.", "expires_after.seconds")
    return files.seconds_kept(anchor, None if seconds is None else int(seconds), "expires_after")


def _name(filename: str | None) -> str:
    """Of the client's path its last part, as a label."""
    last = PurePosixPath((filename or "").replace("\\", "/")).name
    return printable(last, 255) or "upload.jsonl"
