"""What tests of kernels lean on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture
def unwritten_is_nan() -> Iterator[None]:
    """Memory that torch gives without clearing it holds NaN, so that a kernel that reads it is found out."""
    assert torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)
