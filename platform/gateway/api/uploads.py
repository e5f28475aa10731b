from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from django.conf import settings
from django.http import HttpRequest
from ninja import Query, Schema
from pydantic import ConfigDict, Field

from gateway.api.callers import TenantKey, caller
from gateway.api.mutations import Body, management_router
from gateway.api.pages import Page, Wanted, page
from gateway.api.text import Text
from tenants import upload_files, uploads
from tenants.callers import Role
from tenants.models import AdapterUpload
from tenants.upload_files import Declared

router = management_router("adapters", TenantKey(Role.DEVELOPER))

Name = Annotated[Text, Field(max_length=200)]
_BYTES = {"requestBody": {"required": True, "content": {"application/octet-stream": {}}}}


class FileToCome(Body):
    name: Annotated[
        str,
        Field(
            max_length=100,
            description="`adapter_config.json` and `adapter_model.safetensors`, with `golden.json` if you have it; or "
            "`adapter.tar` or `adapter.tar.gz` alone, which holds them.",
        ),
    ]
    size: Annotated[int, Field(ge=1, le=1 << 40, description="In bytes.")]
    sha256: Annotated[str, Field(max_length=64, description="64 lower-case hex digits.")]


class UploadCreation(Body):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "adapter": "pirate",
                    "files": [
                        {"name": "adapter_config.json", "size": 710, "sha256": "9f86d08188" + "0" * 54},
                        {"name": "adapter_model.safetensors", "size": 1859216, "sha256": "60303ae22b" + "0" * 54},
                    ],
                }
            ]
        }
    )

    adapter: Annotated[
        str, Field(max_length=100, description="Its name: lower-case letters, digits, dots, underscores, hyphens.")
    ]
    base_model: Annotated[
        Name | None, Field(description="May be left out for an adapter that exists, and where only one can be used.")
    ] = None
    files: Annotated[list[FileToCome], Field(min_length=1, max_length=3)]


class UploadFile(Schema):
    name: str
    size: int
    sha256: str
    received: int = Field(description="Bytes that are there: the offset of the next part.")


class Upload(Schema):
    """An adapter on its way in."""

    id: str
    object: Literal["adapter.upload"] = "adapter.upload"
    adapter: str
    base_model: str
    state: Literal["open", "completed", "cancelled", "expired"]
    files: list[UploadFile]
    part_bytes: int = Field(description="Largest part that is accepted.")
    version: int | None = Field(description="Number of the version that it became.")
    created_at: datetime
    expires_at: datetime = Field(description="An open upload is given up then.")


def shown(upload: AdapterUpload) -> Upload:
    received = upload_files.received(upload)
    return Upload(
        id=str(upload.pk),
        adapter=upload.name,
        base_model=upload.base_model.name,
        state=upload.state,  # type: ignore[arg-type]
        files=[UploadFile(**file, received=received[file["name"]]) for file in upload.files],
        part_bytes=settings.MAX_BODY_BYTES,
        version=None if upload.version is None else upload.version.number,
        created_at=upload.created_at,
        expires_at=upload.expires_at,
    )


@router.post("/api/uploads", response={201: Upload}, summary="Announce a version of an adapter, new or known")
def create_upload(request: HttpRequest, body: UploadCreation) -> tuple[int, Upload]:
    who = caller(request)
    files = [Declared(file.name, file.size, file.sha256) for file in body.files]
    return 201, shown(uploads.create(who.actor, who.tenant, name=body.adapter, files=files, base_model=body.base_model))


@router.get("/api/uploads", response=Page[Upload], summary="Uploads, newest first")
def list_uploads(request: HttpRequest, window: Wanted) -> dict[str, Any]:
    rows = caller(request).tenant.adapter_uploads.select_related("base_model", "version")
    return page(rows, window, shown, name="pk")


@router.get("/api/uploads/{upload_id}", response=Upload, summary="One upload, and how far it has come")
def get_upload(request: HttpRequest, upload_id: UUID) -> Upload:
    return shown(uploads.find(caller(request).tenant, upload_id))


@router.put(
    "/api/uploads/{upload_id}/files/{name}",
    response=Upload,
    summary="Send the next part of a file",
    description="The body is the part as it is. It has to begin where the file ends so far, or 409 `wrong_offset`; "
    "after a failure, `GET` the upload and go on from `received`. It is kept whole or not at all.",
    openapi_extra=_BYTES,
)
def put_part(
    request: HttpRequest,
    upload_id: UUID,
    name: str,
    offset: Annotated[int, Query(..., ge=0, le=1 << 40, description="Bytes of the file that come before this part.")],
) -> Upload:
    tenant = caller(request).tenant
    uploads.append(tenant, upload_id, name, offset, request.read)
    return shown(uploads.find(tenant, upload_id))


@router.post(
    "/api/uploads/{upload_id}/complete",
    response=Upload,
    summary="Make a version of what was sent",
    description="The version is `pending` until it was checked: see the adapter's versions. "
    "Repeating it returns the same outcome.",
)
def complete_upload(request: HttpRequest, upload_id: UUID) -> Upload:
    who = caller(request)
    return shown(uploads.complete(who.actor, who.tenant, upload_id))


@router.delete("/api/uploads/{upload_id}", response={204: None}, summary="Give an open upload up")
def cancel_upload(request: HttpRequest, upload_id: UUID) -> tuple[int, None]:
    who = caller(request)
    uploads.cancel(who.actor, who.tenant, upload_id)
    return 204, None
