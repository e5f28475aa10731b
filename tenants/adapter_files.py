"""An adapter's files on their way in: private directories, durable copies, and where what waits lies."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from uuid import uuid4

from django.conf import settings

from inference.adapter_format import MAX_CONFIG_BYTES, MAX_TENSOR_BYTES, STORED_FILES
from inference.errors import AdapterInvalid
from inference.safetensors_header import open_regular
from tenants.models import AdapterVersion

COPY = "copy-"
"""Begins the name of every directory in ``INCOMING_DIR`` that is being filled; one that is old was left behind."""

LARGEST = dict(zip(STORED_FILES, (MAX_CONFIG_BYTES, MAX_TENSOR_BYTES), strict=True))
_COPY_BYTES = 1 << 20


def private(directory: Path) -> Path:
    """The directory, made for this user alone if it has to be made."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    return directory


def incoming(version: AdapterVersion) -> Path:
    """Where a pending version's files wait for their check."""
    return Path(settings.INCOMING_DIR) / str(version.pk)


def new_copy() -> Path:
    """A name for a directory on the same file system as :func:`incoming`, not made yet."""
    return private(Path(settings.INCOMING_DIR)) / f"{COPY}{uuid4().hex}"


def copy_files(source: Path, target: Path) -> None:
    """Copy the adapter's two files, and only regular files of an acceptable size, to a new directory, durably.

    Raises :class:`~inference.errors.AdapterInvalid`.
    """
    target.mkdir()
    for name in STORED_FILES:
        with ExitStack() as stack:
            file, size = stack.enter_context(open_regular(source / name))
            check_size(name, size)
            copy = stack.enter_context((target / name).open("xb"))
            left = size
            while left and (data := file.read(min(left, _COPY_BYTES))):
                copy.write(data)
                left -= len(data)
            if left or file.read(1):
                raise AdapterInvalid(f"{name} changed while it was read", name)
            copy.flush()
            os.fsync(copy.fileno())
    sync_directory(target)


def check_size(name: str, size: int) -> None:
    """Raises :class:`~inference.errors.AdapterInvalid`."""
    if size > LARGEST[name]:
        raise AdapterInvalid(f"{name} has {size} bytes; at most {LARGEST[name]} are accepted", name)


def num_bytes(directory: Path) -> int:
    """Of the adapter's two files together."""
    return sum((directory / name).stat().st_size for name in STORED_FILES)


def sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
