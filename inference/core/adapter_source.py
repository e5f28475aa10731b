"""Where an adapter's files lie."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from inference.adapter_format import content_digest, store_path
from inference.errors import AdapterInvalid, AdapterNotFound


class AdapterSource:
    """Reads adapters from the content store, or from the place that an operator named.

    :param read: the runner's, thread-safe; checks the digest of what lies in a directory named by one.
    """

    def __init__(self, store: Path, read: Callable[[Path], object]) -> None:
        self._store, self._read_directory = store, read
        self._places: dict[str, Path] = {}

    def place(self, digest: str, directory: Path) -> None:
        """Read this digest from ``directory`` instead of the store."""
        self._places[digest] = directory

    def displace(self, digest: str) -> bool:
        """From the store again; whether it was anywhere else."""
        return self._places.pop(digest, None) is not None

    def read(self, digest: str) -> object:
        """In any thread. The digest is checked again: the files may have changed since they were.

        Raises :class:`AdapterNotFound`, :class:`AdapterInvalid`.
        """
        directory = self._places.get(digest) or store_path(self._store, digest)
        if not directory.is_dir():
            raise AdapterNotFound("The adapter is not in the store")
        # What lies under its digest is checked by the runner, after it has read it.
        if directory.name != digest and content_digest(directory) != digest:
            raise AdapterInvalid("The adapter's files do not have the digest they are stored under")
        return self._read_directory(directory)
