"""What torch and Triton raise while a device is made ready, in a sentence that says what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from subprocess import SubprocessError

import torch

from inference.errors import ConfigError, InferenceError


@contextmanager
def device_errors(device: torch.device, num_blocks: int | None) -> Iterator[None]:
    """Errors of a CUDA device become :class:`ConfigError`; a CPU's are left as they are.

    :param num_blocks: of the KV pool, which is what one can ask less of; ``None``: the device decides.
    """
    if device.type != "cuda":
        yield
        return
    from triton.errors import TritonError  # imported here: a CPU needs no Triton

    try:
        yield
    except (torch.OutOfMemoryError, InferenceError) as error:
        if not isinstance(error.__cause__ or error, torch.OutOfMemoryError):  # a step's come wrapped
            raise
        blocks = "" if num_blocks is None else f"{num_blocks} "
        message = f"{device} has no room for the model, {blocks}KV blocks and a step; --kv-blocks asks for fewer"
        raise ConfigError(f"{message} ({first_line(error)})") from error
    except (TritonError, RuntimeError, OSError, SubprocessError) as error:
        message = f"{device} cannot be used: {first_line(error)}"
        needed = "its kernels are compiled with a C compiler and Python's headers, and kept in TRITON_CACHE_DIR"
        raise ConfigError(f"{message} ({needed})") from error


def first_line(error: Exception) -> str:
    """Of what it says; CUDA's errors have several."""
    return [*str(error).strip().splitlines(), type(error).__name__][0]
