"""The content store: what lies in ``ADAPTER_STORE/<2 digits>/<digest>``, how it gets there, and how it goes.

Who stores a content and who collects it hold the same lock of that digest. A row that refers to a content is committed
before its check begins, so a collector that comes first removes what the check then writes again, and one that comes
later sees the row.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

from django.conf import settings
from django.db import connection, transaction
from django.db.models import Max
from django.db.models.functions import Coalesce
from django.utils import timezone

from inference.adapter_format import STORED_FILES, AdapterSpec, check_adapter, content_digest, store_path
from inference.base_shapes import BaseShapes
from inference.errors import AdapterInvalid, AdapterNotFound
from tenants.adapter_files import COPY, copy_files, private, sync_directory
from tenants.models import AdapterVersion, BaseModel

logger = logging.getLogger(__name__)

GRACE = timedelta(hours=24)
"""What nothing refers to is kept for so long: requests that run, workers that load late, people who look into it."""

AT_WORK = timedelta(hours=1)
"""Whoever fills a directory is done by then: a younger one is never taken for left behind, whatever the grace."""

_LEFT_BEHIND = (".copy-", ".collected-")
_DAMAGED = ".damaged-"


def put(waiting: Path, base_model: BaseModel) -> tuple[AdapterSpec, str]:
    """Copy into the content store, check the copy, and give it its final name. Returns what it is, and its digest.

    Raises :class:`~inference.errors.AdapterInvalid` and :class:`~inference.errors.UnsupportedModel`.
    """
    store = private(Path(settings.ADAPTER_STORE))
    copy = store / f".copy-{uuid4().hex}"
    try:
        copy_files(waiting, copy)
        spec = check_adapter(copy, BaseShapes.from_config(base_model.config))
        digest = content_digest(copy)
        for name in STORED_FILES:
            (copy / name).chmod(0o444)
        with transaction.atomic():
            _lock(digest)
            _place(store, copy, digest)
        return spec, digest
    finally:
        shutil.rmtree(copy, ignore_errors=True)


def _place(store: Path, copy: Path, digest: str) -> None:
    final = store_path(store, digest)
    final.parent.mkdir(exist_ok=True)
    if _holds(final, digest):
        return
    if final.exists():  # damaged since it was stored: put it out of the way, keep it for whoever looks into it
        logger.error("the stored adapter %s does not match its digest; replaced", digest)
        final.rename(store / f"{_DAMAGED}{digest}-{uuid4().hex[:8]}")
    copy.rename(final)
    sync_directory(final.parent)


def _holds(directory: Path, digest: str) -> bool:
    try:
        return content_digest(directory) == digest
    except AdapterInvalid:
        return False


def _lock(digest: str) -> None:
    """Until the transaction ends. 64 bits of the digest: two contents that share them only wait for each other."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [int(digest[:16], 16) - (1 << 63)])


def collect(grace: timedelta = GRACE) -> dict[str, int]:
    """Remove what nothing refers to any more, and what killed processes left behind. Safe beside anything else.

    Returns how many stored contents went, ``contents`` and their ``bytes``, and how many other directories,
    ``left_behind``. May be killed at any point and run again.
    """
    contents = size = 0
    store = private(Path(settings.ADAPTER_STORE))
    for directory in _stored(store):
        found = _collect_content(store, directory, grace)
        if found is not None:
            contents, size = contents + 1, size + found
    unused = max(grace, AT_WORK)
    left_behind = sum(
        _remove_if(path, _older(path, unused), "left behind by a killed process") for path in _debris(store)
    )
    waiting = private(Path(settings.INCOMING_DIR))
    left_behind += sum(
        _remove_if(path, _older(path, unused) and not _awaited(path), "no version waits for it")
        for path in waiting.iterdir()
        if path.name.isdecimal() or path.name.startswith(COPY)
    )
    return {"contents": contents, "bytes": size, "left_behind": left_behind}


def _stored(store: Path) -> Iterator[Path]:
    for folder in sorted(store.iterdir()):
        if len(folder.name) == 2 and folder.is_dir():
            yield from sorted(folder.iterdir())


def _collect_content(store: Path, directory: Path, grace: timedelta) -> int | None:
    """Its size in bytes if it was removed."""
    digest = directory.name
    try:
        if store_path(store, digest) != directory:
            return None
    except AdapterNotFound:  # nothing that this program stored
        return None
    if not _older(directory, grace) or _is_referred(digest, grace):
        return None
    with transaction.atomic():
        _lock(digest)
        if _is_referred(digest, grace) or not directory.exists():
            return None
        gone = store / f".collected-{digest}-{uuid4().hex[:8]}"
        directory.rename(gone)
    size = sum(path.stat().st_size for path in gone.iterdir() if path.is_file())
    shutil.rmtree(gone, ignore_errors=True)
    logger.info("collected the adapter content %s, %d bytes", digest, size)
    return size


def _is_referred(digest: str, grace: timedelta) -> bool:
    """By a version that is not deleted (one that waits for its check included), or was until lately."""
    versions = AdapterVersion.with_deleted.unscoped().filter(digest=digest)
    if versions.exclude(state=AdapterVersion.State.REJECTED).filter(deleted_at=None).exists():
        return True
    last = versions.aggregate(last=Max(Coalesce("deleted_at", "checked_at", "created_at")))["last"]
    return last is not None and last > timezone.now() - grace


def _older(path: Path, grace: timedelta) -> bool:
    """Whether neither its content nor its name changed lately."""
    try:
        status = path.stat(follow_symlinks=False)
    except FileNotFoundError:
        return False
    changed = datetime.fromtimestamp(max(status.st_mtime, status.st_ctime), UTC)
    return changed < timezone.now() - grace


def _debris(store: Path) -> Iterator[Path]:
    for path in sorted(store.iterdir()):
        if path.name.startswith((*_LEFT_BEHIND, _DAMAGED)):
            yield path


def _awaited(path: Path) -> bool:
    if not path.name.isdecimal() or int(path.name) >= 1 << 63:
        return False
    return bool(AdapterVersion.objects.unscoped().filter(pk=int(path.name), state="pending").exists())


def _remove_if(path: Path, condition: bool, why: str) -> bool:
    if not condition:
        return False
    shutil.rmtree(path, ignore_errors=True)
    logger.info("removed %s: %s", path, why)
    return True
