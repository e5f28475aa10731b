"""Files of tenants, as OpenAI has them: kept under ``FILES_DIR/<tenant>/<id>``, named by id only."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from itertools import islice
from pathlib import Path
from uuid import uuid4

from django.conf import settings
from django.db import transaction
from django.db.models import Count, Sum
from django.utils import timezone

from tenants import audit
from tenants.actors import Actor
from tenants.errors import Conflict, Invalid, NotFound, Suspended
from tenants.models import Batch, File, Tenant
from tenants.rows import hold_tenant

KEPT = timedelta(days=30)
"""How long a file is kept for which nobody said otherwise."""

SHORTEST, LONGEST = 3600, 30 * 24 * 3600
"""Seconds that ``expires_after`` may say."""

_CHUNK = 1 << 18
_INCOMING = "incoming"
_AT_ONCE = 1000
_ORPHAN_SECONDS = 24 * 3600
"""Content without a row this old belongs to an upload or a batch that was killed."""


def content_path(file: File) -> Path:
    return Path(settings.FILES_DIR) / str(file.tenant_id) / file.pk


async def chunks(path: Path) -> AsyncIterator[bytes]:
    """What lies at ``path``, without holding up an event loop."""
    file = await asyncio.to_thread(path.open, "rb")
    try:
        while chunk := await asyncio.to_thread(file.read, _CHUNK):
            yield chunk
    finally:
        file.close()


def incoming() -> Path:
    """A path, on the same file system, at which to write what :func:`keep` will take."""
    folder = Path(settings.FILES_DIR) / _INCOMING
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder / uuid4().hex


def find(tenant: Tenant, file_id: str, *, param: str | None = None) -> File:
    """Raises :class:`~tenants.errors.NotFound`; also for a file that has expired and is not collected yet."""
    now = timezone.now()
    # A text with NUL is none that the database could be asked for.
    file: File | None = (
        None if "\0" in file_id else File.objects.filter(tenant=tenant, pk=file_id, expires_at__gt=now).first()
    )
    if file is None:
        raise NotFound("file", file_id, param)
    return file


def check_room(tenant: Tenant, num_bytes: int) -> None:
    """Raises :class:`~tenants.errors.Conflict` where the tenant has too many files, or too large ones; see `keep`."""
    if tenant.state != Tenant.State.ACTIVE:
        raise Suspended
    count, used = _used(tenant)
    if count >= settings.MAX_FILES:
        raise Conflict(f"You have {settings.MAX_FILES} files already, which is the limit.", code="too_many_files")
    if used + num_bytes > settings.MAX_FILES_BYTES:
        left = max(settings.MAX_FILES_BYTES - used, 0)
        message = f"The file has {num_bytes} bytes; of your limit of {settings.MAX_FILES_BYTES}, {left} are left."
        raise Conflict(message, "file", "file_quota_exceeded")


def check_within_limits(tenant: Tenant) -> None:
    """What a batch writes is never refused, so that none may begin once it has brought the tenant above a limit.

    Raises :class:`~tenants.errors.Conflict`.
    """
    count, used = _used(tenant)
    if count > settings.MAX_FILES:
        message = f"You have {count} files, above the limit of {settings.MAX_FILES}: delete some first."
        raise Conflict(message, code="too_many_files")
    if used > settings.MAX_FILES_BYTES:
        message = f"Your files have {used} bytes, above your limit of {settings.MAX_FILES_BYTES}: delete some first."
        raise Conflict(message, code="file_quota_exceeded")


def _used(tenant: Tenant) -> tuple[int, int]:
    """How many files it has, and their bytes."""
    found = File.objects.filter(tenant=tenant).aggregate(count=Count("pk"), used=Sum("num_bytes", default=0))
    return found["count"], found["used"]


def seconds_kept(anchor: str | None, seconds: int | None, param: str) -> timedelta:
    """How long ``expires_after`` keeps a file. Raises :class:`~tenants.errors.Invalid`."""
    if anchor is None and seconds is None:
        return KEPT
    if anchor != "created_at":
        raise Invalid(f"{param}.anchor has to be created_at.", f"{param}.anchor")
    if seconds is None or not SHORTEST <= seconds <= LONGEST:
        raise Invalid(f"{param}.seconds has to be between {SHORTEST} and {LONGEST}.", f"{param}.seconds")
    return timedelta(seconds=seconds)


def receive(actor: Actor, tenant: Tenant, content: Path, filename: str, kept: timedelta) -> File:
    """Take in an upload that lies complete at ``content`` (see :func:`incoming`). Uploads of a tenant stand in line
    here, so that its quotas hold exactly.

    Raises :class:`~tenants.errors.Conflict` where there is no room.
    """
    with transaction.atomic():
        check_room(hold_tenant(tenant.pk), content.stat().st_size)
        file = keep(tenant, content, filename, File.Purpose.BATCH, kept)
        audit.record(actor, "file.uploaded", file.pk, tenant=tenant, after=shown(file))
    return file


def keep(tenant: Tenant, content: Path, filename: str, purpose: str, kept: timedelta) -> File:
    """Make a file of what lies at ``content``, which moves. Its row is the caller's transaction's; content without a
    row is collected."""
    now = timezone.now()
    file = File(tenant=tenant, filename=filename, purpose=purpose, created_at=now, expires_at=now + kept)
    file.num_bytes = content.stat().st_size
    place = content_path(file)
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    content.rename(place)
    _sync(place.parent)
    file.save(force_insert=True)
    return file


def delete(actor: Actor, file: File) -> None:
    """Raises :class:`~tenants.errors.Conflict` while a batch reads it, and :class:`~tenants.errors.NotFound` where
    somebody else was quicker.
    """
    with transaction.atomic():
        if File.objects.select_for_update().filter(tenant=file.tenant, pk=file.pk).first() is None:
            raise NotFound("file", file.pk)
        reader = Batch.objects.filter(tenant=file.tenant, input_file_id=file.pk, status__in=Batch.UNFINISHED).first()
        if reader is not None:
            raise Conflict(f"The batch {reader.pk} reads this file.", code="file_in_use")
        File.objects.filter(tenant=file.tenant, pk=file.pk).delete()
        audit.record(actor, "file.deleted", file.pk, tenant=file.tenant, before=shown(file))
        transaction.on_commit(lambda: content_path(file).unlink(missing_ok=True))


def shown(file: File) -> dict[str, object]:
    return {"filename": file.filename, "purpose": file.purpose, "bytes": file.num_bytes, "expires_at": file.expires_at}


def collect() -> int:
    """Delete what has expired, unless a batch still reads it, and content that has no row. Returns how many."""
    now, gone = timezone.now(), 0
    reading = Batch.objects.unscoped().filter(status__in=Batch.UNFINISHED).values("input_file_id")
    expired = File.objects.unscoped().filter(expires_at__lte=now).exclude(pk__in=reading)
    for file in expired[:_AT_ONCE]:
        # Content goes last: without its row it is nobody's, and found again below if this process dies in between.
        deleted, _ = File.objects.filter(tenant_id=file.tenant_id, pk=file.pk, expires_at__lte=now).delete()
        content_path(file).unlink(missing_ok=True)
        gone += deleted
    old = _old_content()
    while paths := list(islice(old, _AT_ONCE)):
        gone += _collect_orphans(paths)
    return gone


def _old_content() -> Iterator[Path]:
    limit = time.time() - _ORPHAN_SECONDS
    for path in Path(settings.FILES_DIR).glob("*/*"):
        with suppress(OSError):
            if path.stat().st_ctime < limit:  # the time of its last renaming: what is kept is renamed last
                yield path


def _collect_orphans(paths: Sequence[Path]) -> int:
    names = [path.name for path in paths if path.parent.name != _INCOMING]
    known = set(File.objects.unscoped().filter(pk__in=names).values_list("pk", flat=True))
    orphans = [path for path in paths if path.parent.name == _INCOMING or path.name not in known]
    for path in orphans:
        path.unlink(missing_ok=True)
    return len(orphans)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
