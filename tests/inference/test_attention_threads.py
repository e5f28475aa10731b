"""Compiled attention in processes of their own, with an allocator that hands freed memory on, or back, at once.

The loops take their memory from the caller. One that frees it too early computes from what another thread wrote there
(one arena for all threads), or from memory that the process no longer has (nothing is kept).
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from cpujit.tile import supported

PROGRAM = """
import torch
import cpujit
from inference.attention.panel_backend import PanelAttention
from inference.attention.torch_backend import TorchAttention
from inference.core.step import Row

torch.manual_seed(0)
torch.set_num_threads(2)
LENGTH, BLOCKS = 1600, 101
sizes = dict(num_layers=1, num_heads=9, num_kv_heads=3, head_dim=64, num_blocks=BLOCKS, block_size=16)
compiled = PanelAttention(**sizes)
plain = TorchAttention(**sizes, device=torch.device("cpu"), dtype=torch.float32)
q, k, v = torch.randn(LENGTH, 9, 64), torch.randn(LENGTH, 3, 64), torch.randn(LENGTH, 3, 64)
row = Row([0] * LENGTH, 0, list(range(BLOCKS)))
expected = plain.attend(0, q, k, v, plain.begin([row]))
for _ in range(10):
    found = compiled.attend(0, q, k, v, compiled.begin([row]))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
"""


@pytest.mark.slow
@pytest.mark.skipif(not supported(), reason="made for AVX-512")
@pytest.mark.parametrize(
    "allocator",
    [
        {"MALLOC_ARENA_MAX": "1", "MALLOC_PERTURB_": "165"},
        {"MALLOC_MMAP_THRESHOLD_": "4096", "MALLOC_TRIM_THRESHOLD_": "0"},
    ],
    ids=str,
)
def test_two_threads_over_a_long_prompt_agree_with_torch(allocator: dict[str, str]) -> None:
    command = [sys.executable, "-c", PROGRAM]
    ended = subprocess.run(command, env=os.environ | allocator, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
