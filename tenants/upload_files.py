"""Where the bytes of open uploads lie: ``INCOMING_DIR/uploads/<upload>/<file>``.

The length of that file is how far it has come: nothing is lost when a process dies, and there is nothing to reconcile.
Whoever writes or verifies a file holds its ``flock``, which the system gives back by itself.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from django.conf import settings

from tenants import adapter_tar
from tenants.adapter_files import new_copy, private, sync_directory
from tenants.errors import Conflict, Invalid
from tenants.models import AdapterUpload

TARS = ("adapter.tar", "adapter.tar.gz")
_READ_BYTES = 1 << 20

Read = Callable[[int], bytes]


@dataclass(frozen=True, slots=True)
class Declared:
    """A file that is to come. :param size: in bytes. :param sha256: hex."""

    name: str
    size: int
    sha256: str


def received(upload: AdapterUpload) -> dict[str, int]:
    """Bytes that are there, by file; what a completed upload had."""
    if upload.state == AdapterUpload.State.COMPLETED:
        return {file["name"]: file["size"] for file in upload.files}
    return {file["name"]: _size(directory(upload) / file["name"]) for file in upload.files}


def _size(path: Path) -> int:
    try:
        return path.stat(follow_symlinks=False).st_size
    except FileNotFoundError:
        return 0


def directory(upload: AdapterUpload) -> Path:
    return folder() / str(upload.pk)


def folder() -> Path:
    """Where open uploads lie, a directory each."""
    return Path(settings.INCOMING_DIR) / "uploads"


def append(descriptor: int, offset: int, size: int, read: Read) -> int:
    """Write a part behind the first ``offset`` bytes; all of it, or nothing where that fails. Returns the new length.

    Raises :class:`~tenants.errors.Conflict` where another offset is due, :class:`~tenants.errors.Invalid` beyond
    ``size``, ``OSError``.
    """
    have = os.fstat(descriptor).st_size
    if offset != have:
        raise Conflict(f"{have} bytes are there; go on from there.", "offset", "wrong_offset")
    try:
        return _write(descriptor, have, size, read)
    except BaseException:
        os.ftruncate(descriptor, have)
        raise


def _write(descriptor: int, have: int, size: int, read: Read) -> int:
    while data := read(_READ_BYTES):
        if have + len(data) > size:
            raise Invalid(f"The part goes beyond the {size} bytes that were declared.", "offset")
        view = memoryview(data)
        while view:
            written = os.pwrite(descriptor, view, have)
            view, have = view[written:], have + written
    return have


@contextmanager
def held(path: Path) -> Iterator[int]:
    """The file, made if need be, while nobody else writes it. Raises :class:`~tenants.errors.Conflict` at once."""
    private(folder())
    private(path.parent)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Conflict(f"Another request is busy with {path.name}; try again.", code="busy") from None
        yield descriptor
    finally:
        os.close(descriptor)


def verify(descriptor: int, file: Declared) -> None:
    """Make a file durable if it is what was declared. Raises :class:`~tenants.errors.Conflict`."""
    have = os.fstat(descriptor).st_size
    if have < file.size:
        raise Conflict(f"{file.name} has {have} of {file.size} bytes.", code="incomplete")
    digest = hashlib.sha256()
    os.lseek(descriptor, 0, os.SEEK_SET)
    while data := os.read(descriptor, _READ_BYTES):
        digest.update(data)
    if digest.hexdigest() != file.sha256:
        os.ftruncate(descriptor, 0)
        raise Conflict(
            f"The sha256 of {file.name} is not the declared one. It was discarded: send it again from the beginning.",
            code="digest_mismatch",
        )
    os.fsync(descriptor)


def write(files: Mapping[str, BinaryIO], copy: Path) -> list[Declared]:
    """As :func:`gather`, of files that came with one request. Returns what they turned out to be.

    Raises :class:`~inference.errors.AdapterInvalid`, ``OSError``.
    """
    tar = next((name for name in files if name in TARS), None)
    if tar is None:
        return _write_all(files, copy)
    packed = new_copy()
    try:
        written = _write_all({tar: files[tar]}, packed)
        adapter_tar.unpack(packed / tar, copy)
    finally:
        shutil.rmtree(packed, ignore_errors=True)
    return written


def _write_all(files: Mapping[str, BinaryIO], directory: Path) -> list[Declared]:
    directory.mkdir(mode=0o700)
    written = []
    for name, file in files.items():
        digest = hashlib.sha256()
        file.seek(0)
        with (directory / name).open("xb") as target:
            while data := file.read(_READ_BYTES):
                digest.update(data)
                target.write(data)
            written.append(Declared(name, target.tell(), digest.hexdigest()))
            target.flush()
            os.fsync(target.fileno())
    sync_directory(directory)
    return written


def gather(upload: AdapterUpload, copy: Path) -> None:
    """The adapter's files in a directory of their own; those of the upload stay where they are until it is over."""
    tar = next((file["name"] for file in upload.files if file["name"] in TARS), None)
    if tar is not None:
        adapter_tar.unpack(directory(upload) / tar, copy)
        return
    copy.mkdir(mode=0o700)
    for file in upload.files:
        os.link(directory(upload) / file["name"], copy / file["name"])
    sync_directory(copy)
