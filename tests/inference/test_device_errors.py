"""What is said when a GPU cannot be made ready."""

from __future__ import annotations

from subprocess import CalledProcessError

import pytest
import torch
from triton.errors import TritonError

from inference.device_errors import device_errors
from inference.errors import ConfigError, InferenceError

CUDA = torch.device("cuda", 0)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.\nmore"), "640 KV blocks.*2 GiB[.][)]$"),
        (RuntimeError("Failed to find C compiler."), "cuda:0 cannot be used: Failed to find C compiler.*Python's head"),
        (TritonError(), "cuda:0 cannot be used: TritonError"),
        (CalledProcessError(1, ["gcc", "driver.c"]), "cuda:0 cannot be used: Command.*gcc.*Python's headers"),
        (PermissionError(13, "Permission denied", "/root/.triton"), "/root/.triton.*TRITON_CACHE_DIR"),
    ],
)
def test_a_gpu_that_cannot_be_used_is_a_sentence(error: Exception, said: str) -> None:
    with pytest.raises(ConfigError, match=said), device_errors(CUDA, 640):
        raise error


def test_no_room_in_a_step_is_said_as_well() -> None:
    wrapped = InferenceError("the device failed in a step")
    wrapped.__cause__ = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.")
    with pytest.raises(ConfigError, match=r"640 KV blocks"), device_errors(CUDA, 640):
        raise wrapped


def test_what_has_been_said_already_is_left() -> None:
    with pytest.raises(InferenceError, match=r"^a rank has gone$") as found, device_errors(CUDA, 640):
        raise InferenceError("a rank has gone")
    assert not isinstance(found.value, ConfigError)


def test_a_cpus_errors_are_its_own() -> None:
    with pytest.raises(RuntimeError, match=r"^shapes$"), device_errors(torch.device("cpu"), 640):
        raise RuntimeError("shapes")
