"""Usage as a spreadsheet reads it."""

from __future__ import annotations

import asyncio
import csv
import io
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import IO, Any, cast

from django.conf import settings
from django.http import HttpResponse, StreamingHttpResponse

from tenants.usage import SUMS

CSV = "text/csv"

_IN_MEMORY = 1 << 20
_CHUNK = 1 << 18


def usage_csv(by: Iterable[str], rows: Iterable[Mapping[str, Any]], about: str) -> HttpResponse:
    """A file of :func:`tenants.usage.each_used`'s rows, with a line of names first. Money in micro-units.

    It is written in whole before any of it is sent, where it is long into a file without a name: what goes wrong is an
    error then and not half a file, and whoever reads slowly, or leaves, holds no connection of the database.

    :param about: whose usage it is, for the file's name.
    """
    file = _written(["at", *dict.fromkeys(by), *SUMS], rows)
    size = file.seek(0, io.SEEK_END)
    file.seek(0)
    answer: Any = StreamingHttpResponse(
        _chunks(file),
        content_type=f"{CSV}; charset=utf-8",
        headers={"Content-Length": str(size), "Content-Disposition": f'attachment; filename="usage-{about}.csv"'},
    )
    return cast(HttpResponse, answer)  # Django serves what they both are


def _written(names: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> IO[bytes]:
    folder = Path(settings.FILES_DIR)  # a place for large files, which /tmp need not be
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    file = SpooledTemporaryFile(_IN_MEMORY, dir=str(folder))  # noqa: SIM115 - whoever sends it closes it
    text = io.TextIOWrapper(cast(IO[bytes], file), encoding="utf-8", newline="", write_through=True)
    write = csv.writer(text)
    write.writerow(names)
    write.writerows([cell(row[name]) for name in names] for row in rows)
    text.detach()
    return cast(IO[bytes], file)


async def _chunks(file: IO[bytes]) -> AsyncIterator[bytes]:
    with file:
        while chunk := await asyncio.to_thread(file.read, _CHUNK):
            yield chunk


def cell(value: Any) -> Any:
    """A text that a spreadsheet would take for a formula is written as a text."""
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r", "\n"):
        return f"'{value}"
    return value
