"""What the input files of unfinished batches name."""

from __future__ import annotations

import re
from pathlib import Path

from tenants import files
from tenants.models import Adapter, Batch, File

PIECE = 1 << 18
"""Bytes that are looked through at once. A search keeps Python's lock, and every stream of the process waits for it:
0.1 ms for a usual piece, 8 for the worst found; 100 MB at once took 0.5 to 4 s."""

_DIGITS = 9
"""Of the highest version that a request can name; see :mod:`tenants.versions`."""


class Mentions:
    """Where one adapter is named by files of its own tenant: by its name, or by that of a version.

    :param number: only where this version is named; ``None``: its name, or any version.

    A file's content never changes, so each is read once, by however many batches it is the input, and however often is
    asked: whoever asks before taking a lock waits under it for nothing but files that came in between.
    """

    def __init__(self, adapter: Adapter, number: int | None = None) -> None:
        self._tenant = adapter.tenant
        owner, self._name = adapter.tenant.slug.encode(), adapter.name.encode()
        version = rb"(?:@\d{1,%d})?" % _DIGITS if number is None else b"@%d" % number
        self._quoted = re.compile(rb'"(?:%b\\?/)?%b%b"' % (re.escape(owner), re.escape(self._name), version))
        self._longest = len(rb'"\/@"') + len(owner) + len(self._name) + _DIGITS
        self._found: dict[str, bool] = {}

    def batches(self) -> list[str]:
        """Ids of the unfinished batches that name it, at this moment."""
        unfinished = dict(
            Batch.objects.filter(tenant=self._tenant, status__in=Batch.UNFINISHED).values_list("pk", "input_file_id")
        )
        new = set(unfinished.values()) - self._found.keys()
        for file in File.objects.filter(tenant=self._tenant, pk__in=new):
            self._found[file.pk] = self._in(files.content_path(file))
        return [batch for batch, file in unfinished.items() if self._found.get(file, False)]

    def _in(self, path: Path) -> bool:
        try:
            file = path.open("rb", buffering=0)
        except FileNotFoundError:
            return False
        with file:
            rest = b""
            while piece := file.read(PIECE):
                piece = rest + piece
                # Most pieces do not hold the name at all, which is found out several times as fast.
                if self._name in piece and self._quoted.search(piece) is not None:
                    return True
                rest = piece[-self._longest :]  # it may stand on both sides of a piece's end
        return False
