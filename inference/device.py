"""Where the core computes, and in which type."""

from __future__ import annotations

import torch

from inference.errors import ConfigError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def choose(device: str, dtype: str) -> tuple[torch.device, torch.dtype]:
    """:param device: ``auto``: CUDA where there is one, else the CPU; or a torch device such as ``cuda:1``. ``cuda`` is
        ``cuda:0``.
    :param dtype: ``auto``: bfloat16 on CUDA, float32 anywhere else; or one of :data:`DTYPES`.
    :raises ConfigError: names what does not exist.
    """
    if dtype != "auto" and dtype not in DTYPES:
        raise ConfigError(f"dtype {dtype!r}; one of auto, {', '.join(DTYPES)}")
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        place = torch.device(device)
    except RuntimeError as error:
        raise ConfigError(f"device {device!r}: {str(error).splitlines()[0]}") from error
    if place.type == "cuda" and (place.index or 0) >= torch.cuda.device_count():
        raise ConfigError(f"device {device!r}: torch sees {torch.cuda.device_count()} CUDA devices")
    if place.type not in ("cpu", "cuda"):
        raise ConfigError(f"device {device!r}: cpu and cuda are supported")
    if place.type == "cuda":  # with its number, which its tensors have, and which torch asks for
        place = torch.device("cuda", place.index or 0)
    if dtype == "auto":
        return place, torch.bfloat16 if place.type == "cuda" else torch.float32
    return place, DTYPES[dtype]


def rank_device(device: str, rank: int, size: int) -> str:
    """Where one rank of several computes: the CPU, or the CUDA device of its number.

    :param device: as for :func:`choose`. :raises ConfigError: it names a single device, or there are too few.
    """
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if size == 1 or device.partition(":")[0] == "cpu":
        return device
    if device != "cuda":
        raise ConfigError(f"--device {device} is one device; --tensor-parallel {size} takes cuda, cuda:0 to {size - 1}")
    if torch.cuda.device_count() < size:
        raise ConfigError(f"--tensor-parallel {size}: torch sees {torch.cuda.device_count()} CUDA devices")
    return f"cuda:{rank}"
