"""How messages between processes of one worker are framed.

A frame is four bytes of length (little-endian) and a msgpack array ``[name, field, …]``. Both ends are of one version:
they are started together.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any, BinaryIO, Generic, TypeVar

import msgpack  # type: ignore[import-untyped]

M = TypeVar("M")
MAX_FRAME_BYTES = 64 * 1024 * 1024
"""Longer ones are no messages of ours."""


class Codec(Generic[M]):
    """:param kinds: the dataclasses that are messages, by whose names they are told apart."""

    def __init__(self, *kinds: type[Any]) -> None:
        self._kinds = {kind.__name__: kind for kind in kinds}
        self._fields = {kind: tuple(field.name for field in fields(kind)) for kind in kinds}

    def encode(self, message: M) -> bytes:
        """One frame, length included."""
        kind = type(message)
        body: bytes = msgpack.packb([kind.__name__, *(getattr(message, name) for name in self._fields[kind])])
        return len(body).to_bytes(4, "little") + body

    def decode(self, body: bytes) -> M:
        """The inverse of :meth:`encode` without the length. Raises ``ValueError`` for anything else."""
        try:
            name, *parts = msgpack.unpackb(body, strict_map_key=False)  # logit_bias is keyed by token
            message: M = self._kinds[name](*parts)
        except (KeyError, TypeError, ValueError, msgpack.UnpackException) as error:
            raise ValueError("not a message of this version") from error
        return message

    def read(self, stream: BinaryIO) -> M | None:
        """The next message; ``None`` at the stream's end. Raises ``ValueError`` for a frame cut short or too long."""
        header = stream.read(4)
        if not header:
            return None
        length = int.from_bytes(header, "little")
        if len(header) < 4 or length > MAX_FRAME_BYTES:
            raise ValueError("a broken frame")
        body = stream.read(length)
        if len(body) < length:
            raise ValueError("a frame cut short")
        return self.decode(body)
