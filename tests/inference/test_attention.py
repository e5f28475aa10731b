"""Paged attention by itself, against plain softmax in float64 over each sequence's own keys and values."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from inference.attention.panel_backend import PanelAttention
from inference.attention.torch_backend import TorchAttention
from inference.core.step import Row

CPU = torch.device("cpu")

pytestmark = pytest.mark.usefixtures("threads")


@dataclass(frozen=True)
class Shape:
    heads: int = 4
    kv_heads: int = 2
    dim: int = 6
    block: int = 4
    windows: tuple[int | None, int | None] = (None, None)

    def make(self, backend: type[Any], blocks: int = 64) -> Any:
        options = {
            "num_layers": 2,
            "num_heads": self.heads,
            "num_kv_heads": self.kv_heads,
            "head_dim": self.dim,
            "num_blocks": blocks,
            "block_size": self.block,
            "windows": self.windows,
        }
        if backend is TorchAttention:
            options |= {"device": CPU, "dtype": torch.float32}
        elif not PanelAttention.supports(head_dim=self.dim, block_size=self.block, device=CPU, dtype=torch.float32):
            pytest.skip("made for AVX-512")
        made = backend(**options)
        # what nobody has written must reach nobody
        made._keys.fill_(float("nan"))
        made._values.fill_(float("nan"))
        return made


class Sequence:
    """All of a sequence's q, k and v; parts of it are computed step by step."""

    def __init__(self, shape: Shape, length: int, blocks: list[int]) -> None:
        self.shape, self.blocks, self.done = shape, blocks, 0
        self.q = torch.randn(length, shape.heads, shape.dim)
        self.k, self.v = (torch.randn(length, shape.kv_heads, shape.dim) for _ in "kv")

    def expected(self, start: int, stop: int, window: int | None) -> Tensor:
        group = self.shape.heads // self.shape.kv_heads
        k, v = (part[:stop].double().repeat_interleave(group, 1) for part in (self.k, self.v))
        scores = torch.einsum("qhd,khd->hqk", self.q[start:stop].double(), k) / math.sqrt(self.shape.dim)
        behind = torch.arange(start, stop)[:, None] - torch.arange(stop)[None, :]
        hidden = (behind < 0) | (behind >= (window or stop))
        return torch.einsum("hqk,khd->qhd", scores.masked_fill(hidden, float("-inf")).softmax(-1), v).flatten(1)


def step(attention: Any, parts: list[tuple[Sequence, int]], layer: int = 1) -> Tensor:
    """Compute the next ``count`` positions of each sequence together, and compare each."""
    spans = [(sequence, sequence.done, sequence.done + count) for sequence, count in parts]
    rows = [Row([0] * (stop - start), start, sequence.blocks) for sequence, start, stop in spans]
    shape = spans[0][0].shape
    # as the decoder hands them over: parts of one wider tensor
    heads = [shape.heads, shape.kv_heads, shape.kv_heads]
    qkv = torch.cat([torch.cat([s.q, s.k, s.v], 1)[start:stop] for s, start, stop in spans])
    q, k, v = qkv.split(heads, dim=1)
    out: Tensor = attention.attend(layer, q, k, v, attention.begin(rows))
    assert out.is_contiguous()
    expected = [sequence.expected(start, stop, shape.windows[layer]) for sequence, start, stop in spans]
    torch.testing.assert_close(out.double(), torch.cat(expected), atol=1e-5, rtol=1e-5)
    for sequence, _, stop in spans:
        sequence.done = stop
    return out


SMALL, WIDE = Shape(), Shape(heads=6, kv_heads=2, dim=32, block=16)
Made = tuple[Any, Callable[..., Sequence], int]


@pytest.fixture(params=[(TorchAttention, SMALL), (TorchAttention, WIDE), (PanelAttention, WIDE)], ids=str)
def made(request: pytest.FixtureRequest) -> Made:
    """The backend, what makes a sequence for it, and how many times the small blocks' positions one of its holds."""
    torch.manual_seed(0)
    backend, shape = request.param
    scale = shape.block // SMALL.block
    return shape.make(backend), lambda length, blocks: Sequence(shape, length * scale, blocks), scale


def test_prompts_in_chunks_and_decoding_rows_share_steps(made: Made) -> None:
    attention, sequence, scale = made
    long, short, late = sequence(30, [9, 3, 7, 1, 0, 12, 5, 40]), sequence(12, [2, 4, 6]), sequence(9, [60, 50, 8])
    step(attention, [(long, 7 * scale), (short, 5)])
    step(attention, [(long, 9), (short, 1)])
    step(attention, [(short, 1), (long, 1), (late, 4)])
    step(attention, [(late, 1), (short, 1), (long, 1)])
    step(attention, [(long, 1), (late, 3)])
    step(attention, [(long, 1)])


def test_rows_of_very_different_lengths_decode_together(made: Made) -> None:
    attention, sequence, scale = made
    long, short, middle = sequence(150, list(range(40))), sequence(4, [63]), sequence(90, list(range(40, 63)))
    step(attention, [(long, 140 * scale), (short, 2), (middle, 80 * scale)])
    for _ in range(2):
        step(attention, [(long, 1), (short, 1), (middle, 1)])


def test_layers_keep_their_keys_apart(made: Made) -> None:
    attention, sequence, _ = made
    one, other = sequence(6, [0, 1]), sequence(6, [0, 1])
    step(attention, [(one, 5)], layer=0)
    step(attention, [(other, 5)], layer=1)
    step(attention, [(one, 1)], layer=0)
    step(attention, [(other, 1)], layer=1)


def test_a_sequence_may_read_blocks_that_another_has_written(made: Made) -> None:
    attention, sequence, scale = made
    first, second = sequence(12, [5, 6, 7]), sequence(12, [5, 6, 20])
    shared = 8 * scale
    step(attention, [(first, 9 * scale)])
    second.k[:shared], second.v[:shared], second.done = first.k[:shared], first.v[:shared], shared
    step(attention, [(second, 3), (first, 1)])


SHAPES = [
    Shape(9, 3, 64, 16),
    Shape(4, 4, 16, 16),
    Shape(32, 1, 48, 16),
    Shape(14, 2, 80, 32),
    Shape(8, 2, 128, 48, (None, 1)),
    Shape(4, 1, 32, 16, (5, 16)),
    Shape(6, 2, 32, 32, (40, 100)),
]


@pytest.mark.parametrize("backend", [TorchAttention, PanelAttention])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_random_tables_lengths_and_chunks(shape: Shape, backend: type[Any]) -> None:
    torch.manual_seed(4)
    choose = random.Random(4)
    attention = shape.make(backend, blocks=200)
    free = choose.sample(range(200), 200)
    sequences = []
    for _ in range(7):
        length = choose.choice([3, shape.block, 40, 130, 300])
        blocks = [free.pop() for _ in range(-(-length // shape.block))]
        sequences.append(Sequence(shape, length, blocks))
    # two go on where a third one's prefix ends, in its blocks
    parent = Sequence(shape, 6 * shape.block, [free.pop() for _ in range(6)])
    step(attention, [(parent, 4 * shape.block)])
    for _ in range(2):
        child = Sequence(shape, 5 * shape.block, [*parent.blocks[:2], *(free.pop() for _ in range(3))])
        child.k[: 2 * shape.block], child.v[: 2 * shape.block] = (
            parent.k[: 2 * shape.block],
            parent.v[: 2 * shape.block],
        )
        child.done = 2 * shape.block
        sequences.append(child)
    while sequences:
        parts = []
        for sequence in choose.sample(sequences, choose.randint(1, len(sequences))):
            count = choose.choice([1, 1, 1, 2, 5, 12, 13, 30, 100])
            parts.append((sequence, min(count, len(sequence.q) - sequence.done)))
        step(attention, parts)
        sequences = [sequence for sequence in sequences if sequence.done < len(sequence.q)]


def test_a_rows_bits_depend_on_that_row_alone() -> None:
    """Compiled attention gives a row the same numbers alone, beside others and whatever those hold."""
    found = []
    for company in (0, 3):
        torch.manual_seed(5)
        attention = WIDE.make(PanelAttention)
        one = Sequence(WIDE, 90, list(range(6)))
        others = [Sequence(WIDE, 60, [10 + 4 * i, 11 + 4 * i, 12 + 4 * i, 13 + 4 * i]) for i in range(company)]
        outs = []
        for count in (33, 1, 5, 1, 20):
            rows = [Row([0] * count, one.done, one.blocks), *(Row([0] * 3, 7, other.blocks) for other in others)]
            own = slice(one.done, one.done + count)
            spoilt = torch.full((3, 1, WIDE.dim), float("nan"))
            q, k, v = (
                torch.cat([part[own], *(spoilt.expand(3, part.shape[1], -1) for _ in others)])
                for part in (one.q, one.k, one.v)
            )
            outs.append(attention.attend(1, q, k, v, attention.begin(rows))[:count])
            one.done += count
        found.append(torch.cat(outs))
    assert torch.equal(found[0], found[1])
    assert torch.isfinite(found[0]).all()


@pytest.mark.parametrize(
    ("length", "blocks", "message"),
    [
        (16, [], r"block_table of row 1: 0 blocks of 16, for 16 positions"),
        (17, [3], r"block_table of row 1: 1 blocks of 16, for 17 positions"),
        (16, [64], r"block_table: 0 … 64, there are 64 blocks"),
        (16, [-1], r"block_table: -1 … 0, there are 64 blocks"),
    ],
)
def test_a_table_that_leads_elsewhere_is_refused(length: int, blocks: list[int], message: str) -> None:
    attention = WIDE.make(PanelAttention)
    with pytest.raises(ValueError, match=message):
        attention.begin([Row([0] * 5, 0, [0]), Row([0] * length, 0, blocks), Row([0] * 5, 11, [0])])


def test_tokens_that_are_not_the_steps_are_refused() -> None:
    attention = WIDE.make(PanelAttention)
    begun = attention.begin([Row([0] * 5, 0, [0])])
    q, k, v = torch.randn(4, 6, 32), torch.randn(4, 2, 32), torch.randn(4, 2, 32)
    with pytest.raises(ValueError, match="q: 4 tokens, the step has 5"):
        attention.attend(0, q, k, v, begun)
