"""Where the core computes, and in which type."""

from __future__ import annotations

import torch

from inference.errors import ConfigError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def choose(device: str, dtype: str) -> tuple[torch.device, torch.dtype]:
    """:param device: ``auto``: CUDA where there is one, else the CPU; or a torch device such as ``cuda:1``.
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
    if dtype == "auto":
        return place, torch.bfloat16 if place.type == "cuda" else torch.float32
    return place, DTYPES[dtype]
