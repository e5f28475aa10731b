"""A tenant's files, as its own people have them at ``/v1/files``."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.core.files.uploadedfile import UploadedFile
from django.http import HttpRequest, QueryDict, StreamingHttpResponse
from ninja import Query

from gateway.api import files as own
from gateway.api.callers import caller
from gateway.api.files import File, FileDeleted, FileWindow
from gateway.api.mutations import management_router, reads_form
from gateway.api.openapi_streams import FILE_FORM
from gateway.api.operator.acting import ActingOperator
from gateway.api.pages import Page
from gateway.errors import bad_request, body_too_large
from inference.safetensors_header import printable
from tenants import files
from tenants.callers import Caller
from tenants.models import File as FileRow

router = management_router("operators: files", ActingOperator())

_OF_ONE = "/api/operator/tenants/{tenant}/files"
_ANCHOR, _SECONDS = "expires_after[anchor]", "expires_after[seconds]"


@router.get(_OF_ONE, response=Page[File], summary="A tenant's files, newest first unless asked otherwise")
def list_files(request: HttpRequest, tenant: str, window: Query[FileWindow]) -> dict[str, Any]:
    return own.list_files(request, window)


@router.post(
    _OF_ONE,
    response=File,
    summary="Upload a batch's input for a tenant, as a form",
    description="As large as any other body of this API may be; `manage.py upload_file` takes larger ones.",
    openapi_extra={"requestBody": FILE_FORM},
)
@reads_form
def upload_file(request: HttpRequest, tenant: str) -> File:
    if request.content_type != "multipart/form-data":
        raise bad_request("The body has to be multipart/form-data.", code="invalid_form")
    kept, sent = _kept(request.POST), request.FILES.getlist("file")
    for name in {*request.FILES} - {"file"}:
        raise bad_request(f"Unrecognized request argument: {name[:64]}", name[:64], "unknown_parameter")
    if not sent:
        raise bad_request("file is required.", "file", "missing_required_parameter")
    if len(sent) > 1:
        raise bad_request("file is there twice.", "file")
    return own.shown(_received(caller(request), sent[0], kept))


def _kept(fields: QueryDict) -> timedelta:
    for name, values in fields.lists():
        if name not in {"purpose", _ANCHOR, _SECONDS}:
            raise bad_request(f"Unrecognized request argument: {name[:64]}", name[:64], "unknown_parameter")
        if len(values) > 1:
            raise bad_request(f"{name} is there twice.", name)
    purpose, seconds = fields.get("purpose"), fields.get(_SECONDS)
    if purpose is None:
        raise bad_request("purpose is required.", "purpose", "missing_required_parameter")
    if purpose != "batch":
        raise bad_request("purpose has to be batch: other files have no use here.", "purpose")
    if seconds is not None and not (seconds.isascii() and seconds.isdigit() and len(seconds) <= 9):
        raise bad_request("expires_after.seconds has to be a whole number.", "expires_after.seconds")
    return files.seconds_kept(fields.get(_ANCHOR), None if seconds is None else int(seconds), "expires_after")


def _received(who: Caller, sent: UploadedFile[Any], kept: timedelta) -> FileRow:
    if (sent.size or 0) > settings.MAX_FILE_BYTES:
        raise body_too_large(settings.MAX_FILE_BYTES)
    path = files.incoming()
    try:
        with path.open("xb") as copy:
            for chunk in sent.chunks():
                copy.write(chunk)
            copy.flush()
            os.fsync(copy.fileno())
        return files.receive(who.actor, who.tenant, path, printable(sent.name or "", 255) or "upload.jsonl", kept)
    finally:
        path.unlink(missing_ok=True)


@router.get(f"{_OF_ONE}/{{file_id}}", response=File, summary="One file of a tenant")
def get_file(request: HttpRequest, tenant: str, file_id: str) -> File:
    return own.get_file(request, file_id)


@router.get(f"{_OF_ONE}/{{file_id}}/content", summary="What is in a tenant's file, where the account allows it")
def get_content(request: HttpRequest, tenant: str, file_id: str) -> StreamingHttpResponse:
    """As for stored prompts and answers: an owner of the account has to have allowed it, and the look stands in its
    audit log.
    """
    return own.get_content(request, file_id)


@router.delete(
    f"{_OF_ONE}/{{file_id}}", response=FileDeleted, summary="Delete a tenant's file that no unfinished batch reads"
)
def delete_file(request: HttpRequest, tenant: str, file_id: str) -> FileDeleted:
    return own.delete_file(request, file_id)
