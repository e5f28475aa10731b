from __future__ import annotations

from typing import Annotated, Any, Literal, cast

from django.http import HttpRequest, StreamingHttpResponse
from ninja import Query, Schema
from pydantic import Field

from gateway.api.callers import caller
from gateway.api.mutations import management_router
from gateway.api.openai_keys import AnyKey
from gateway.api.pages import Page, page
from tenants import batches, files, payloads
from tenants.models import File as FileRow

router = management_router("files", AnyKey())


class File(Schema):
    """A file; times are Unix seconds. ``status`` is always ``processed``: what is wrong with a batch's input, the batch
    says.
    """

    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    expires_at: int
    filename: str
    purpose: Literal["batch", "batch_output"]
    status: Literal["processed"] = "processed"


class FileDeleted(Schema):
    id: str
    object: Literal["file"] = "file"
    deleted: Literal[True] = True


class FileWindow(Schema):
    """Which part of the list is wanted."""

    limit: Annotated[int, Field(ge=1, le=10_000)] = 100
    after: Annotated[str, Field(max_length=200)] | None = None
    order: Literal["asc", "desc"] = "desc"
    purpose: Literal["batch", "batch_output"] | None = None


def shown(file: FileRow) -> File:
    return File(
        id=file.pk,
        bytes=file.num_bytes,
        created_at=int(file.created_at.timestamp()),
        expires_at=int(file.expires_at.timestamp()),
        filename=file.filename,
        purpose=cast(Literal["batch", "batch_output"], file.purpose),
    )


@router.get("/v1/files", response=Page[File], summary="The account's files, newest first unless asked otherwise")
def list_files(request: HttpRequest, window: Query[FileWindow]) -> dict[str, Any]:
    rows = FileRow.objects.filter(tenant=caller(request).tenant)
    if window.purpose is not None:
        rows = rows.filter(purpose=window.purpose)
    return page(rows, window, shown, name="pk", order="-pk" if window.order == "desc" else "pk")  # type: ignore[arg-type]


@router.get("/v1/files/{file_id}", response=File, summary="One file")
def get_file(request: HttpRequest, file_id: str) -> File:
    return shown(files.find(caller(request).tenant, file_id))


@router.get("/v1/files/{file_id}/content", summary="What is in a file, as it was uploaded or written")
def get_content(request: HttpRequest, file_id: str) -> StreamingHttpResponse:
    """For the keys of developers and owners. One that an operator issued needs the account's permission, as for stored
    prompts and answers, and its look stands in the audit log.
    """
    who = caller(request)
    file = files.find(who.tenant, file_id)
    payloads.open_file(who, file)
    return StreamingHttpResponse(
        files.chunks(files.content_path(file)),
        content_type="application/octet-stream",
        headers={"Content-Length": str(file.num_bytes), "Cache-Control": "no-store"},
    )


@router.delete("/v1/files/{file_id}", response=FileDeleted, summary="Delete a file that no unfinished batch reads")
def delete_file(request: HttpRequest, file_id: str) -> FileDeleted:
    """Owners delete any file of the account, developers none that a batch of another's key names."""
    who = caller(request)
    file = files.find(who.tenant, file_id)
    batches.require_own_file(who, file)
    files.delete(who.actor, file)
    return FileDeleted(id=file_id)
