"""A step's numbers on their way to the device: arrays of any type in one copy that nobody waits for."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_ALIGNED = 16
_DTYPES = {"int64": torch.int64, "float64": torch.float64, "float32": torch.float32, "uint8": torch.uint8}


class Parcel:
    """Named flat arrays of int64, float64, float32 or uint8, laid end to end."""

    def __init__(self) -> None:
        self._parts: dict[str, npt.NDArray[Any]] = {}

    def add(self, name: str, values: npt.NDArray[Any]) -> None:
        """An empty array is not sent. Raises ``KeyError`` for a type that a parcel does not carry."""
        _DTYPES[values.dtype.name]
        if values.size:
            self._parts[name] = np.ascontiguousarray(values).reshape(-1)

    def send(self, device: torch.device) -> dict[str, Tensor]:
        """What was added, on ``device``, one-dimensional; on CUDA in the order of the current stream."""
        if not self._parts:
            return {}
        starts = {}
        size = 0
        for name, part in self._parts.items():
            starts[name] = size
            size += -(-part.nbytes // _ALIGNED) * _ALIGNED
        host = host_bytes(size, device)
        whole = host.numpy()
        for name, part in self._parts.items():
            whole[starts[name] : starts[name] + part.nbytes] = part.view(np.uint8)
        there = host.to(device, non_blocking=True)
        return {
            name: there[starts[name] : starts[name] + part.nbytes].view(_DTYPES[part.dtype.name])
            for name, part in self._parts.items()
        }


def host_bytes(size: int, device: torch.device) -> Tensor:
    """``[size]`` uint8 on the host, unset; pinned where ``device`` is CUDA, as a copy has to be that nobody waits for.

    torch keeps pinned memory until the copies from and to it are done.
    """
    return torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=device.type == "cuda")
