"""Reads the header of a safetensors file that somebody else wrote, trusting nothing in it.

Format: 8 bytes little-endian header length, a JSON object of that length, then the data. Each entry names a data type,
a shape and a half-open byte range of the data; here the ranges also have to cover the data exactly, without overlap.
No allocation is larger than :data:`MAX_HEADER_BYTES` or one scan chunk, whatever the file claims.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import numpy as np

from inference.errors import AdapterInvalid

MAX_HEADER_BYTES = 4 << 20
MAX_TENSORS = 20_000
_SCAN_BYTES = 4 << 20
_MACHINE_FAILED = frozenset({errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""Not the adapter's fault: these go up as they are, so that the check can be repeated."""

ITEM_BYTES = {"F32": 4, "F16": 2, "BF16": 2}
# An IEEE number is infinite or not a number exactly when all its exponent bits are set.
_EXPONENT: dict[str, tuple[type[np.unsignedinteger[Any]], int]] = {
    "F32": (np.uint32, 0x7F800000),
    "F16": (np.uint16, 0x7C00),
    "BF16": (np.uint16, 0x7F80),
}


@dataclass(frozen=True, slots=True)
class Tensor:
    """:param start: offset of the first byte in the *file*; ``num_bytes`` follow."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    num_bytes: int


def shown(text: str) -> str:
    """A hostile name, quoted and cut to a length that fits a message."""
    return repr(text if len(text) <= 120 else text[:117] + "...")


def printable(text: str, most: int = 200) -> str:
    """The text, cut; escaped where it holds what a database would refuse (NUL, lone surrogates)."""
    text = text[:most]
    return text if text.isprintable() else repr(text)[1:-1][:most]


@contextmanager
def open_regular(path: Path) -> Iterator[tuple[BinaryIO, int]]:
    """The file and its size in bytes. Raises :class:`AdapterInvalid` for links, devices, pipes and what is missing."""
    try:
        # O_NONBLOCK: opening a named pipe must not wait for a writer
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in _MACHINE_FAILED:
            raise
        raise AdapterInvalid(f"{path.name} cannot be opened as a regular file: {error.strerror}", path.name) from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise AdapterInvalid(f"{path.name} is not a regular file", path.name)
        file = os.fdopen(descriptor, "rb", closefd=False)  # after the check: it would itself fail on a directory
        with file:
            yield file, status.st_size
    finally:
        os.close(descriptor)


def load_json(data: bytes, field: str) -> dict[str, Any]:
    """A JSON object without repeated keys, NaN or Infinity. Raises :class:`AdapterInvalid`."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                raise AdapterInvalid(f"{field}: the key {shown(key)} appears twice", field)
            found[key] = value
        return found

    def refuse(constant: str) -> NoReturn:
        raise AdapterInvalid(f"{field}: {constant} is not JSON", field)

    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=unique, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)[:200]
        raise AdapterInvalid(f"{field} is not valid JSON: {reason}", field) from None
    if not isinstance(value, dict):
        raise AdapterInvalid(f"{field} is not a JSON object", field)
    return value


def read_header(path: Path) -> tuple[Tensor, ...]:
    """Every tensor, in the order of its data. Raises :class:`AdapterInvalid` naming the file or the tensor."""
    with open_regular(path) as (file, size):
        length = int.from_bytes(file.read(8), "little") if size >= 8 else 0
        if not 2 <= length <= min(MAX_HEADER_BYTES, size - 8):
            raise AdapterInvalid(
                f"{path.name}: the header's length {length} is impossible (file {size} bytes, at most "
                f"{MAX_HEADER_BYTES} are read)",
                path.name,
            )
        data = file.read(length)
    if len(data) != length:
        raise AdapterInvalid(f"{path.name} became shorter while it was read", path.name)
    header = load_json(data, path.name)
    _check_metadata(header.pop("__metadata__", {}), path.name)
    if not 1 <= len(header) <= MAX_TENSORS:
        raise AdapterInvalid(f"{path.name} holds {len(header)} tensors; 1 to {MAX_TENSORS} are accepted", path.name)
    tensors = sorted(
        (_entry(name, value, 8 + length) for name, value in header.items()), key=lambda t: (t.start, t.num_bytes)
    )
    position = 8 + length
    for tensor in tensors:
        if tensor.start != position:
            raise AdapterInvalid(
                f"tensor {shown(tensor.name)} begins at byte {tensor.start}, not {position}: "
                "the data must be covered without gaps or overlaps",
                tensor.name,
            )
        position += tensor.num_bytes
    if position != size:
        raise AdapterInvalid(f"{path.name}: the tensors end at byte {position}, the file at {size}", path.name)
    return tuple(tensors)


def _check_metadata(metadata: object, field: str) -> None:
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise AdapterInvalid(f"{field}: __metadata__ has to map text to text", "__metadata__")


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**48


def _entry(name: str, value: object, data_start: int) -> Tensor:
    if not isinstance(value, dict) or value.keys() != {"dtype", "shape", "data_offsets"}:
        raise AdapterInvalid(f"tensor {shown(name)}: exactly dtype, shape and data_offsets are expected", name)
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str) or dtype not in ITEM_BYTES:
        kind = shown(dtype) if isinstance(dtype, str) else "that is not text"
        raise AdapterInvalid(f"tensor {shown(name)}: data type {kind} is not supported (F32, F16, BF16 are)", name)
    if not isinstance(shape, list) or len(shape) > 8 or not all(_is_count(size) and size > 0 for size in shape):
        raise AdapterInvalid(f"tensor {shown(name)}: the shape is not a short list of positive sizes", name)
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(_is_count(offset) for offset in offsets):
        raise AdapterInvalid(f"tensor {shown(name)}: data_offsets are not two byte offsets", name)
    begin, end = offsets
    if end - begin != prod(shape) * ITEM_BYTES[dtype]:
        raise AdapterInvalid(f"tensor {shown(name)}: {end - begin} bytes do not hold {dtype} of shape {shape}", name)
    return Tensor(name, dtype, tuple(shape), data_start + begin, end - begin)


def refuse_non_finite(path: Path, tensors: Sequence[Tensor]) -> None:
    """Raise :class:`AdapterInvalid` naming the first tensor that holds NaN or an infinity."""
    with open_regular(path) as (file, _):
        for tensor in tensors:
            integer, exponent = _EXPONENT[tensor.dtype]
            file.seek(tensor.start)
            left = tensor.num_bytes
            while left:
                data = file.read(min(left, _SCAN_BYTES))
                if not data or len(data) % ITEM_BYTES[tensor.dtype]:
                    raise AdapterInvalid(f"{path.name} became shorter while it was read", path.name)
                bits = np.frombuffer(data, dtype=np.dtype(integer).newbyteorder("<")) & exponent
                if (bits == exponent).any():
                    raise AdapterInvalid(f"tensor {shown(tensor.name)} holds NaN or an infinity", tensor.name)
                left -= len(data)
