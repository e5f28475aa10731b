"""One file and a few short fields as multipart/form-data, written to disk while they arrive."""

from __future__ import annotations

import asyncio
import hashlib
import os
from pathlib import Path
from typing import BinaryIO

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from gateway.errors import ApiError, bad_request, body_too_large

MOST_FIELD_BYTES = 1024
MOST_PARTS = 8
_WRITE_BYTES = 1 << 20


class FileForm:
    """:ivar fields: the short ones, by name.
    :ivar filename: what the client called its file; ``None``: none came.

    :param path: where the file's content goes; a new file.
    :param names: of the fields that may come; the file is called ``file``.
    """

    def __init__(self, content_type: bytes, path: Path, names: frozenset[str], most_bytes: int) -> None:
        kind, options = parse_options_header(content_type)
        boundary = options.get(b"boundary", b"")
        if kind != b"multipart/form-data" or not boundary:
            raise bad_request("The body has to be multipart/form-data.", code="invalid_form")
        self.fields: dict[str, str] = {}
        self.filename: str | None = None
        self.size = 0
        self._names = names
        self._most = most_bytes
        self._digest = hashlib.sha256()
        self._file: BinaryIO = path.open("xb")
        self._waiting = bytearray()
        self._parts = 0
        self._complete = False
        self._headers: dict[bytes, bytes] = {}
        self._header, self._value = bytearray(), bytearray()
        self._name = ""
        self._field = bytearray()
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._on_part_begin,
                "on_header_field": lambda data, start, end: self._header.extend(data[start:end]),
                "on_header_value": lambda data, start, end: self._value.extend(data[start:end]),
                "on_header_end": self._on_header_end,
                "on_headers_finished": self._on_headers_finished,
                "on_part_data": self._on_part_data,
                "on_part_end": self._on_part_end,
                "on_end": self._on_end,
            },
        )

    async def feed(self, data: bytes) -> None:
        """Raises :class:`~gateway.errors.ApiError` 400 and 413."""
        self._parse(data)
        if len(self._waiting) >= _WRITE_BYTES:
            await asyncio.to_thread(self._write)

    async def finish(self) -> bytes:
        """The file's sha256, once it is on disk. Raises :class:`~gateway.errors.ApiError` 400."""
        if not self._complete:
            raise bad_request("The form ends in the middle.", code="invalid_form")
        if self.filename is None:
            raise bad_request("file is required.", "file", "missing_required_parameter")
        await asyncio.to_thread(self._write, durable=True)
        return self._digest.digest()

    def close(self) -> None:
        self._file.close()

    def _parse(self, data: bytes) -> None:
        try:
            self._parser.write(data)
        except FormParserError:
            raise bad_request("The body is not well-formed multipart/form-data.", code="invalid_form") from None

    def _write(self, *, durable: bool = False) -> None:
        data, self._waiting = self._waiting, bytearray()
        self._digest.update(data)
        self._file.write(data)
        if durable:
            self._file.flush()
            os.fsync(self._file.fileno())

    def _on_part_begin(self) -> None:
        self._parts += 1
        if self._parts > MOST_PARTS:
            raise bad_request(f"The form has more than {MOST_PARTS} parts.", code="invalid_form")
        self._headers = {}
        self._field.clear()

    def _on_header_end(self) -> None:
        self._headers[bytes(self._header).lower()] = bytes(self._value)
        self._header.clear()
        self._value.clear()

    def _on_headers_finished(self) -> None:
        _, options = parse_options_header(self._headers.get(b"content-disposition"))
        self._name = options.get(b"name", b"").decode("utf-8", "replace")
        if self._name == "file":
            if self.filename is not None:
                raise bad_request("file is there twice.", "file")
            self.filename = options.get(b"filename", b"").decode("utf-8", "replace")
        elif self._name not in self._names:
            name = self._name[:64]
            raise bad_request(f"Unrecognized request argument: {name}", name, "unknown_parameter")
        elif self._name in self.fields:
            raise bad_request(f"{self._name} is there twice.", self._name)

    def _on_part_data(self, data: bytes, start: int, end: int) -> None:
        if self._name != "file":
            self._field += data[start:end]
            if len(self._field) > MOST_FIELD_BYTES:
                raise bad_request(f"{self._name} is longer than {MOST_FIELD_BYTES} bytes.", self._name)
            return
        self.size += end - start
        if self.size > self._most:
            error: ApiError = body_too_large(self._most)
            error.param = "file"
            raise error
        self._waiting += data[start:end]

    def _on_part_end(self) -> None:
        if self._name != "file":
            self.fields[self._name] = self._field.decode("utf-8", "replace")

    def _on_end(self) -> None:
        self._complete = True
