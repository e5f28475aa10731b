"""The weights of a model store directory, by tensor name."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from inference.errors import ConfigError

_TYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a tensor lies. :param file: all bytes of its file, mapped. :param start: of its first byte."""

    file: Tensor
    start: int
    stop: int
    dtype: torch.dtype
    shape: tuple[int, ...]


class Checkpoint:
    """One safetensors file or several, mapped at the first tensor and read one tensor at a time.

    Not by safetensors' ``safe_open``: its release 0.8 never frees two integers of every tensor that it reads, and DoRA
    adapters, which read all of the base's, come and go as long as a worker runs.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._places: dict[str, _Place] = {}

    def tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """On the CPU, in the type it is stored in. It may show the file itself: not to be written to.

        :raises ConfigError: it is missing, or not of this shape.
        """
        if not self._places:
            self._open()
        place = self._places.get(name)
        if place is None:
            raise ConfigError(f"tensor {name}: missing from the weights")
        if place.shape != shape:
            raise ConfigError(f"tensor {name}: shape {place.shape}, config.json implies {shape}")
        data = place.file[place.start : place.stop]
        if data.data_ptr() % place.dtype.itemsize or data.storage_offset() % place.dtype.itemsize:
            data = data.clone()  # the format does not promise that numbers are aligned
        return data.view(place.dtype).view(shape)

    def _open(self) -> None:
        for path in sorted(self._directory.glob("model*.safetensors")):
            try:
                self._places |= _places(path)
            except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
                raise ConfigError(f"{path}: not a complete safetensors file ({error})") from error


def _places(path: Path) -> dict[str, _Place]:
    size = path.stat().st_size
    with path.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if length > size - 8:
            raise ValueError(f"a header of {length} bytes in a file of {size}")
        header: dict[str, Any] = json.loads(stream.read(length))
    header.pop("__metadata__", None)
    first = 8 + length
    file = torch.from_file(str(path), shared=False, size=size, dtype=torch.uint8, device="cpu")
    found = {}
    for name, entry in header.items():
        start, stop = (first + offset for offset in entry["data_offsets"])
        if stop > size:
            raise ValueError(f"tensor {name} ends at byte {stop}, the file at {size}")
        if entry["dtype"] in _TYPES:  # the others are no weights that a model of this configuration has
            found[name] = _Place(file, start, stop, _TYPES[entry["dtype"]], tuple(entry["shape"]))
    return found
