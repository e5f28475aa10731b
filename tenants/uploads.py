"""Adapters that come in part by part: declared first, sent by offset, complete when every byte is there."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import BinaryIO
from uuid import UUID

from django.core.exceptions import ValidationError
from django.db import transaction
from django.utils import timezone

from inference.adapter_format import CONFIG_FILE, STORED_FILES, TENSORS_FILE, check_listing
from inference.errors import AdapterInvalid
from inference.golden import GOLDEN_FILE
from inference.golden import MAX_BYTES as MAX_GOLDEN_BYTES
from tenants import adapter_quotas, audit, intake, upload_files
from tenants.actors import Actor
from tenants.adapter_files import LARGEST, new_copy, private
from tenants.errors import AdapterRefused, Conflict, Invalid, NotConfigured, NotFound
from tenants.models import Adapter, AdapterUpload, BaseModel, Tenant
from tenants.rows import hold_tenant
from tenants.upload_files import TARS, Declared, Read

LIFETIME = timedelta(hours=24)
KEPT = timedelta(days=30)
MOST_OPEN = 16
"""Open uploads of one tenant."""

MOST_BYTES = {
    **LARGEST,
    GOLDEN_FILE: MAX_GOLDEN_BYTES,
    **dict.fromkeys(TARS, LARGEST[TENSORS_FILE] + (2 << 20)),
}
"""Of each file that may be sent."""

_FORMS = ({*STORED_FILES}, {*STORED_FILES, GOLDEN_FILE}, *({tar} for tar in TARS))
_TAR_ENDINGS = {"adapter.tar": (".tar",), "adapter.tar.gz": (".tar.gz", ".tgz")}
_DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


def create(
    actor: Actor, tenant: Tenant, *, name: str, files: Sequence[Declared], base_model: str | None = None
) -> AdapterUpload:
    """Announce a version of the adapter ``name``: its two files, with ``golden.json`` if wanted, or one tar of them.

    Raises :class:`~tenants.errors.Invalid`, :class:`~tenants.errors.AdapterRefused`, :class:`~tenants.errors.NotFound`
    for a base model that the tenant may not use, and :class:`~tenants.errors.Conflict` where there is no room.
    """
    _check_name(name)
    _check_files(files)
    with transaction.atomic():
        tenant = hold_tenant(tenant.pk)
        model = intake.model_for(tenant, name, None if base_model is None else _model(tenant, base_model))
        if len(adapter_quotas.open_uploads(tenant)) >= MOST_OPEN:
            raise Conflict(f"{MOST_OPEN} uploads are open; complete or cancel one first.", code="too_many_uploads")
        size = sum(file.size for file in files)
        adapter_quotas.require_room(tenant, name, size)
        upload: AdapterUpload = AdapterUpload.objects.create(
            tenant=tenant,
            name=name,
            base_model=model,
            files=[{"name": file.name, "size": file.size, "sha256": file.sha256} for file in files],
            num_bytes=size,
            expires_at=timezone.now() + LIFETIME,
        )
        after = {"adapter": name, "base_model": model.name, "bytes": size}
        audit.record(actor, "upload.created", str(upload.pk), tenant=tenant, after=after)
    return upload


def receive(
    actor: Actor, tenant: Tenant, *, name: str, files: Mapping[str, BinaryIO], base_model: str | None = None
) -> AdapterUpload:
    """An upload in one go, of files that are here already; completed. Raises as :func:`create` and :func:`complete`.

    :param files: by what their sender calls them; those that are no part of an adapter are passed over.
    """
    parts = {known: file for sent, file in files.items() if (known := part_name(sent)) is not None}
    _check_name(name)
    _check_sizes({known: file.seek(0, os.SEEK_END) for known, file in parts.items()})
    # Written and unpacked before anything is locked: nobody else of the tenant waits for it, and a refusal leaves no
    # bytes behind that no quota counts.
    written: list[Declared] = []
    with _unpacked(lambda copy: written.extend(upload_files.write(parts, copy))) as copy, transaction.atomic():
        upload = create(actor, tenant, name=name, files=written, base_model=base_model)
        return _complete(actor, tenant, upload.pk, copy)


def part_name(filename: str) -> str | None:
    """What an upload calls a file that its sender calls so; a tar may have any name. ``None``: no adapter's file."""
    if filename in {*STORED_FILES, GOLDEN_FILE}:
        return filename
    for tar, endings in _TAR_ENDINGS.items():
        if filename.endswith(endings):
            return tar
    return None


def _check_name(name: str) -> None:
    try:
        Adapter._meta.get_field("name").clean(name, None)
    except ValidationError as error:
        raise Invalid(f"adapter: {' '.join(error.messages)}", "adapter") from None


def _check_files(files: Sequence[Declared]) -> None:
    sizes = {file.name: file.size for file in files}
    _check_sizes(sizes if len(sizes) == len(files) else {})
    for file in files:
        if len(file.sha256) != 64 or set(file.sha256) - set("0123456789abcdef"):
            raise Invalid(f"files: sha256 of {file.name} has to be 64 lower-case hex digits.", "files")


def _check_sizes(sizes: Mapping[str, int]) -> None:
    """:param sizes: in bytes, of each file."""
    if set(sizes) not in _FORMS:
        raise Invalid(
            f"files: {CONFIG_FILE} and {TENSORS_FILE} are expected, with or without {GOLDEN_FILE}, "
            f"or one tar of them, {' or '.join(TARS)}.",
            "files",
        )
    for name, size in sizes.items():
        if not 0 < size <= MOST_BYTES[name]:
            raise Invalid(f"files: {name} may have 1 to {MOST_BYTES[name]} bytes.", "files")


def _model(tenant: Tenant, name: str) -> BaseModel:
    allowance = tenant.model_allowances.select_related("base_model").filter(base_model__name=name).first()
    if allowance is None:
        raise NotFound("base model", name, "base_model")
    model: BaseModel = allowance.base_model
    return model


def find(tenant: Tenant, upload_id: UUID) -> AdapterUpload:
    """Raises :class:`~tenants.errors.NotFound`."""
    rows = tenant.adapter_uploads.select_related("base_model", "version")
    upload: AdapterUpload | None = rows.filter(pk=upload_id).first()
    if upload is None:
        raise NotFound("upload", str(upload_id))
    return upload


def append(tenant: Tenant, upload_id: UUID, name: str, offset: int, read: Read) -> int:
    """Append a part to a file; returns how many bytes of it are there then. ``read(n)`` gives the next bytes.

    All of a part is kept or nothing of it, unless the process is killed: then what came is kept. Sending a part again
    fails with ``wrong_offset``, and the upload itself says where to go on.

    Raises :class:`~tenants.errors.NotFound`, :class:`~tenants.errors.Conflict`, :class:`~tenants.errors.Invalid`.
    """
    upload = find(tenant, upload_id)
    size = next((file["size"] for file in upload.files if file["name"] == name), None)
    if size is None:
        raise NotFound("file", name)
    _require_open(upload)
    try:
        with _disk(), upload_files.held(upload_files.directory(upload) / name) as descriptor:
            _require_open(find(tenant, upload_id))  # it may have ended while this request came in
            return upload_files.append(descriptor, offset, size, read)
    except (Conflict, OSError):
        _require_open(_as_it_ended(tenant, upload_id))
        raise


@contextmanager
def _disk() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in _DISK_FULL:
            raise NotConfigured("the disk for uploads is full") from error
        raise


def _require_open(upload: AdapterUpload) -> None:
    state = AdapterUpload.State
    if upload.state == state.OPEN and upload.expires_at <= timezone.now():
        raise Conflict("The upload has expired; create another.", code="upload_expired")
    if upload.state != state.OPEN:
        raise Conflict(f"The upload is {upload.state}.", code=f"upload_{upload.state}")


def complete(actor: Actor, tenant: Tenant, upload_id: UUID) -> AdapterUpload:
    """Make a version of what was sent, and queue its check. Of a completed upload it only returns the outcome.

    Raises :class:`~tenants.errors.Conflict` while bytes are missing, and after discarding a file whose sha256 is not
    the declared one; :class:`~tenants.errors.AdapterRefused` for a tar that holds anything else, or a wrong file.
    """
    upload = find(tenant, upload_id)
    if upload.state == AdapterUpload.State.COMPLETED:
        return upload
    _require_open(upload)
    try:
        with _disk(), ExitStack() as stack:
            for file in upload.files:
                descriptor = stack.enter_context(upload_files.held(upload_files.directory(upload) / file["name"]))
                upload_files.verify(descriptor, Declared(**file))
            copy = stack.enter_context(_unpacked(lambda copy: upload_files.gather(upload, copy)))
            return _complete(actor, tenant, upload_id, copy)
    except (Conflict, AdapterRefused, OSError):
        ended = _as_it_ended(tenant, upload_id)
        if ended.state == AdapterUpload.State.COMPLETED:
            return ended
        _require_open(ended)
        raise


def _as_it_ended(tenant: Tenant, upload_id: UUID) -> AdapterUpload:
    """The upload after its files could not be used. Whoever ends one takes its directory away without the files' locks,
    so they may be gone because of that; and what a request made anew in the meantime goes here.
    """
    upload = find(tenant, upload_id)
    if upload.state != AdapterUpload.State.OPEN:
        shutil.rmtree(upload_files.directory(upload), ignore_errors=True)
    return upload


@contextmanager
def _unpacked(fill: Callable[[Path], None]) -> Iterator[Path]:
    """A directory with an adapter's files as ``fill`` makes it; what is left of it goes at the end."""
    copy = new_copy()
    try:
        with _disk():
            fill(copy)
            check_listing(copy)
            yield copy
    except AdapterInvalid as error:
        raise AdapterRefused(str(error)) from None
    finally:
        shutil.rmtree(copy, ignore_errors=True)


def _complete(actor: Actor, tenant: Tenant, upload_id: UUID, copy: Path) -> AdapterUpload:
    golden = intake.read_golden(copy)
    with transaction.atomic():
        upload = _locked(tenant, upload_id)
        if upload.state == AdapterUpload.State.COMPLETED:
            return upload
        _require_open(upload)
        upload.version = intake.take_in(
            copy,
            tenant=tenant,
            name=upload.name,
            base_model=upload.base_model,
            golden=golden,
            actor=actor,
            upload=upload,
        )
        _end(upload, AdapterUpload.State.COMPLETED)
        after = {"adapter": upload.name, "version": upload.version.number}
        audit.record(actor, "upload.completed", str(upload.pk), tenant=tenant, after=after)
    return upload


def cancel(actor: Actor, tenant: Tenant, upload_id: UUID) -> None:
    """Give an open upload up; its bytes go. Raises :class:`~tenants.errors.NotFound`, :class:`Conflict`."""
    with transaction.atomic():
        upload = _locked(tenant, upload_id)
        _require_open(upload)
        _end(upload, AdapterUpload.State.CANCELLED)
        audit.record(actor, "upload.cancelled", str(upload.pk), tenant=tenant, before={"adapter": upload.name})


def expire() -> int:
    """End uploads whose time is over, remove directories that belong to no open one, and forget uploads that ended
    :data:`KEPT` ago. Returns how many ended now.
    """
    paths = list(private(upload_files.folder()).iterdir())  # before the rows: what is made meanwhile is not looked at
    overdue = AdapterUpload.objects.unscoped().filter(state="open", expires_at__lte=timezone.now())
    ended: int = overdue.update(state=AdapterUpload.State.EXPIRED)
    long_over = AdapterUpload.objects.unscoped().filter(expires_at__lt=timezone.now() - KEPT)
    long_over.exclude(state=AdapterUpload.State.OPEN).delete()
    alive = {str(pk) for pk in AdapterUpload.objects.unscoped().filter(state="open").values_list("pk", flat=True)}
    for path in paths:
        if path.name not in alive:
            shutil.rmtree(path, ignore_errors=True)
    return ended


def _locked(tenant: Tenant, upload_id: UUID) -> AdapterUpload:
    rows = tenant.adapter_uploads.select_for_update(of=("self",)).select_related("base_model", "version")
    upload: AdapterUpload | None = rows.filter(pk=upload_id).first()
    if upload is None:
        raise NotFound("upload", str(upload_id))
    return upload


def _end(upload: AdapterUpload, state: AdapterUpload.State) -> None:
    upload.state = state
    upload.save(update_fields=["state", "version"])
    transaction.on_commit(lambda: shutil.rmtree(upload_files.directory(upload), ignore_errors=True))
