"""That float32 and 16-bit sums are what they say, whatever the environment says of torch."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch

from inference.process_settings import settle

MATMUL = torch.backends.cuda.matmul
ASKED = "import torch; print(torch.backends.cuda.matmul.allow_tf32)"
SETTLED = (
    "import torch; from inference.process_settings import settle; settle(torch.device('cpu'), None); "
    "print(torch.backends.cuda.matmul.allow_tf32)"
)


@pytest.fixture
def kept() -> Iterator[None]:
    before = torch.get_num_threads(), torch.get_float32_matmul_precision()
    yield
    torch.set_num_threads(before[0])
    torch.set_float32_matmul_precision(before[1])


@pytest.mark.usefixtures("kept")
def test_products_are_of_whole_numbers() -> None:
    torch.set_float32_matmul_precision("medium")
    MATMUL.allow_bf16_reduced_precision_reduction = MATMUL.allow_fp16_reduced_precision_reduction = True
    settle(torch.device("cpu"), 1)
    assert torch.get_float32_matmul_precision() == "highest"
    assert not MATMUL.allow_bf16_reduced_precision_reduction
    assert not MATMUL.allow_fp16_reduced_precision_reduction
    assert torch.get_num_threads() == 1


@pytest.mark.slow
@pytest.mark.parametrize(("program", "said"), [(ASKED, "True"), (SETTLED, "False")])
def test_an_environment_that_asks_for_less_is_overruled(program: str, said: str) -> None:
    """NVIDIA's containers set this variable."""
    environment = os.environ | {"TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == said
