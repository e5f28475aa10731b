"""Unpacks an uploaded tar of an adapter's files, reading it once from front to back and trusting nothing in it.

Only regular files with the names of an adapter's files are written, each once and of an acceptable size; there are no
paths, links or devices in an adapter. It is read here rather than by ``tarfile``, which reads extended headers of any
size into memory and knows many things that an adapter does not need.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, NoReturn

from inference.adapter_format import STORED_FILES
from inference.errors import AdapterInvalid
from inference.golden import GOLDEN_FILE
from inference.golden import MAX_BYTES as MAX_GOLDEN_BYTES
from inference.safetensors_header import open_regular, shown
from tenants.adapter_files import LARGEST, sync_directory

MAX_ENTRIES = 32
MAX_RATIO = 100
"""Times its own size that a compressed file may unpack to, beyond the first :data:`_FREE_BYTES`; weights reach 2."""

_FREE_BYTES = 16 << 20
_BLOCK = 512
_MOST_EXTENDED = 64 << 10
_MOST_README = 1 << 20
_CHUNK = 1 << 20
_PACKED = 64 << 10
_TAKEN = {**LARGEST, GOLDEN_FILE: MAX_GOLDEN_BYTES}
_SKIPPED = {"README.md": _MOST_README}
# "<length> <key>=<value>\n", of the keys that change nothing about the entry's name, kind and content.
_RECORD = re.compile(rb"(\d{1,6}) ((?:[amc]time|[ug]id|[ug]name|comment|(?:SCHILY|LIBARCHIVE)\.[A-Za-z.]{1,64}))=")
_ANY_RECORD = re.compile(rb"\d{1,6} ([^=]{1,100})=")
_HOW = "make it with: tar -C <adapter> -cf adapter.tar " + " ".join(STORED_FILES)

Read = Callable[[int], bytes]


def unpack(source: Path, target: Path) -> None:
    """Unpack a tar, compressed with gzip or not, to a new directory, durably.

    Raises :class:`~inference.errors.AdapterInvalid` saying what is in the tar that does not belong there. The two files
    themselves may still be missing.
    """
    target.mkdir(mode=0o700)
    with open_regular(source) as (file, size):
        head = file.read(2)
        file.seek(0)
        try:
            if head == b"\x1f\x8b":
                _Tar(_inflated(file, _FREE_BYTES + MAX_RATIO * size), source.name).unpack(target)
            else:
                _Tar(file.read, source.name).unpack(target)
        except zlib.error as error:
            _refuse(source.name, f"is no gzip file: {error}")
    sync_directory(target)


def _inflated(file: IO[bytes], most: int) -> Read:
    """Of the first gzip member only. ``gzip.GzipFile`` reads headers byte by byte, and members without end."""
    inflate, left = zlib.decompressobj(31), most

    def read(count: int) -> bytes:
        nonlocal left
        while not inflate.eof:
            packed = inflate.unconsumed_tail or file.read(_PACKED)
            data = inflate.decompress(packed, count)
            left -= len(data)
            if left < 0:
                raise AdapterInvalid(f"the tar unpacks to more than {MAX_RATIO} times its size")
            if data or not packed:
                return data
        return b""

    return read


class _Tar:
    def __init__(self, read: Read, name: str) -> None:
        self._read = read
        self._name = name

    def unpack(self, target: Path) -> None:
        for _ in range(MAX_ENTRIES):
            header = self._exactly(_BLOCK)
            if not header.strip(b"\0"):
                return  # what follows is padding, and is not looked at
            self._entry(header, target)
        _refuse(self._name, f"has more than {MAX_ENTRIES} entries")

    def _entry(self, header: bytes, target: Path) -> None:
        if _number(header[148:156]) != sum(header[:148]) + sum(header[156:]) + 8 * ord(" "):
            _refuse(self._name, f"is no tar: a header's checksum is wrong; {_HOW}")
        size, kind = _number(header[124:136]), header[156:157]
        if size is None:
            _refuse(self._name, "is no tar: a header has no size")
        if kind in (b"x", b"g"):
            self._extended(size)
            return
        name = _text(header[:100])
        if header[257:262] == b"ustar" and header[263:265] == b"00" and header[345:500].strip(b"\0"):
            name = f"{_text(header[345:500])}/{name}"
        name = name.removeprefix("./")
        if kind == b"5" and size == 0 and name in ("", "."):
            return
        if kind not in (b"0", b"\0"):
            _refuse(self._name, f"holds {shown(name)}, which is no regular file; {_HOW}")
        if name in _SKIPPED:
            self._skip(name, size, _SKIPPED[name])
        elif name in _TAKEN:
            self._write(name, size, target)
        else:
            _refuse(self._name, f"holds {shown(name)}, which does not belong to an adapter; {_HOW}")

    def _extended(self, size: int) -> None:
        """Times and owners are passed over; a header that changes what the next entry is gets refused."""
        if size > _MOST_EXTENDED:
            _refuse(self._name, f"has an extended header of {size} bytes; at most {_MOST_EXTENDED} are read")
        data = self._exactly(_padded(size))[:size]
        start = 0
        while start < size:
            record = _RECORD.match(data, start)
            length = int(record[1]) if record else 0
            if record is None or record.end() - start > length or length > size - start:
                named = _ANY_RECORD.match(data, start)
                what = f"the extended header {shown(_text(named[1]))}" if named else "an extended header"
                _refuse(self._name, f"has {what}, which may change its entries; {_HOW}")
            start += length

    def _write(self, name: str, size: int, target: Path) -> None:
        if size > _TAKEN[name]:
            _refuse(self._name, f"holds {name} of {size} bytes; at most {_TAKEN[name]} are accepted")
        try:
            file = (target / name).open("xb")
        except FileExistsError:
            _refuse(self._name, f"holds {name} twice")
        with file:
            left = size
            while left:
                data = self._exactly(min(left, _CHUNK))
                file.write(data)
                left -= len(data)
            file.flush()
            os.fsync(file.fileno())
        self._exactly(_padded(size) - size)

    def _skip(self, name: str, size: int, most: int) -> None:
        if size > most:
            _refuse(self._name, f"holds {name} of {size} bytes; at most {most} are accepted")
        self._exactly(_padded(size))

    def _exactly(self, count: int) -> bytes:
        parts, left = [], count
        while left:
            data = self._read(left)
            if not data:
                _refuse(self._name, "ends too early")
            parts.append(data)
            left -= len(data)
        return b"".join(parts)


def _padded(size: int) -> int:
    return -(-size // _BLOCK) * _BLOCK


def _number(field: bytes) -> int | None:
    """An octal number; for large files GNU's binary form."""
    if field[:1] == b"\x80":
        return int.from_bytes(field[1:], "big")
    digits = field.strip(b" \0")
    return int(digits, 8) if re.fullmatch(rb"[0-7]+", digits) else None


def _text(field: bytes) -> str:
    return field.partition(b"\0")[0].decode("utf-8", "backslashreplace")


def _refuse(name: str, what: str) -> NoReturn:
    raise AdapterInvalid(f"{name} {what}", name)
