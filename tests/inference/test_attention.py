"""Paged attention by itself, against plain softmax in float64 over each sequence's own keys and values."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from inference.attention.torch_backend import TorchAttention
from inference.core.step import Row

HEADS, KV_HEADS, DIM, BLOCK = 4, 2, 6, 4


@pytest.fixture
def attention() -> TorchAttention:
    made = TorchAttention(
        num_layers=2,
        num_heads=HEADS,
        num_kv_heads=KV_HEADS,
        head_dim=DIM,
        num_blocks=64,
        block_size=BLOCK,
        device=torch.device("cpu"),
        dtype=torch.float32,
    )
    # what nobody has written must reach nobody
    made._keys.fill_(float("nan"))
    made._values.fill_(float("nan"))
    return made


class Sequence:
    """All of a sequence's q, k and v; parts of it are computed step by step."""

    def __init__(self, length: int, blocks: list[int]) -> None:
        self.blocks, self.done = blocks, 0
        self.q = torch.randn(length, HEADS, DIM)
        self.k, self.v = torch.randn(length, KV_HEADS, DIM), torch.randn(length, KV_HEADS, DIM)

    def expected(self, start: int, stop: int) -> Tensor:
        group = HEADS // KV_HEADS
        k, v = (part[:stop].double().repeat_interleave(group, 1) for part in (self.k, self.v))
        scores = torch.einsum("qhd,khd->hqk", self.q[start:stop].double(), k) / math.sqrt(DIM)
        future = torch.arange(stop)[None, :] > torch.arange(start, stop)[:, None]
        weights = scores.masked_fill(future, float("-inf")).softmax(-1)
        return torch.einsum("hqk,khd->qhd", weights, v).flatten(1)


def step(attention: TorchAttention, parts: list[tuple[Sequence, int]], layer: int = 1) -> None:
    """Compute the next ``count`` positions of each sequence together, and compare each."""
    spans = [(sequence, sequence.done, sequence.done + count) for sequence, count in parts]
    rows = [Row([0] * (stop - start), start, sequence.blocks) for sequence, start, stop in spans]
    q, k, v = (
        torch.cat([getattr(sequence, name)[start:stop] for sequence, start, stop in spans]) for name in ("q", "k", "v")
    )
    out = attention.attend(layer, q, k, v, attention.begin(rows))
    expected = torch.cat([sequence.expected(start, stop) for sequence, start, stop in spans])
    torch.testing.assert_close(out.double(), expected, atol=1e-5, rtol=1e-5)
    for sequence, _, stop in spans:
        sequence.done = stop


def test_prompts_in_chunks_and_decoding_rows_share_steps(attention: TorchAttention) -> None:
    torch.manual_seed(0)
    long, short, late = Sequence(30, [9, 3, 7, 1, 0, 12, 5, 40]), Sequence(12, [2, 4, 6]), Sequence(9, [60, 50, 8])
    step(attention, [(long, 7), (short, 5)])
    step(attention, [(long, 9), (short, 1)])
    step(attention, [(short, 1), (long, 1), (late, 4)])
    step(attention, [(late, 1), (short, 1), (long, 1)])
    step(attention, [(long, 1), (late, 3)])
    step(attention, [(long, 1)])


def test_rows_of_very_different_lengths_decode_together(attention: TorchAttention) -> None:
    torch.manual_seed(1)
    long, short, middle = Sequence(150, list(range(40))), Sequence(4, [63]), Sequence(90, list(range(40, 63)))
    step(attention, [(long, 140), (short, 2), (middle, 80)])
    for _ in range(2):
        step(attention, [(long, 1), (short, 1), (middle, 1)])


def test_layers_keep_their_keys_apart(attention: TorchAttention) -> None:
    torch.manual_seed(2)
    one, other = Sequence(6, [0, 1]), Sequence(6, [0, 1])
    step(attention, [(one, 5)], layer=0)
    step(attention, [(other, 5)], layer=1)
    step(attention, [(one, 1)], layer=0)
    step(attention, [(other, 1)], layer=1)


def test_a_sequence_may_read_blocks_that_another_has_written(attention: TorchAttention) -> None:
    torch.manual_seed(3)
    first = Sequence(12, [5, 6, 7])
    step(attention, [(first, 9)])
    second = Sequence(12, [5, 6, 20])
    second.k[:8], second.v[:8], second.done = first.k[:8], first.v[:8], 8
    step(attention, [(second, 3), (first, 1)])
