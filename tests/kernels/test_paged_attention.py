"""The kernels against ``naive.py`` in float64, for every size they are made for."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import Tensor

from inference.attention.torch_backend import TorchAttention
from inference.attention.triton_backend import TritonAttention
from inference.core.step import Row
from paged_attention import AttentionArgumentError, Sequence, Tiles, attention, attention_naive
from paged_attention.attention import Shape, paged_attention, write
from tests.kernels.replay import recording

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
TOLERANCE = {torch.float32: 5e-6, torch.float16: 3e-3, torch.bfloat16: 3e-2}
MIXED = [(0, 1), (5, 1), (100, 1), (0, 7), (33, 20), (200, 1), (64, 3)]
"""(start, tokens): first tokens, decode, prompts, chunks after a prefix hit."""


class Case:
    """Sequences with blocks anywhere in a pool whose other positions hold NaN."""

    def __init__(
        self, steps: list[tuple[int, int]], shape: Shape, dtype: torch.dtype = torch.float32, seed: int = 0
    ) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.shape, size, dtype = shape, shape.block_size, shape.dtype
        self.num_blocks = sum(-(-(start + count) // size) for start, count in steps) + 3
        free = list(range(self.num_blocks))
        random.Random(seed).shuffle(free)
        pool = (self.num_blocks, size, shape.num_kv_heads, shape.head_dim)
        self.keys, self.values = torch.full(pool, torch.nan), torch.full(pool, torch.nan)
        self.sequences = []
        for start, count in steps:
            blocks = [free.pop() for _ in range(-(-(start + count) // size))]
            for position in range(start):
                for part in (self.keys, self.values):
                    part[blocks[position // size], position % size] = torch.randn(pool[2:], generator=generator)
            self.sequences.append(Sequence(start, count, blocks))
        tokens = sum(count for _, count in steps)
        self.q = torch.randn(tokens, shape.num_heads, shape.head_dim, generator=generator).to(DEVICE, dtype)
        self.k, self.v = (torch.randn(tokens, *pool[2:], generator=generator).to(DEVICE, dtype) for _ in range(2))
        self.keys, self.values = self.keys.to(DEVICE, dtype), self.values.to(DEVICE, dtype)

    def tiles(self) -> Tiles:
        sizes = {"block_size": self.shape.block_size, "num_blocks": self.num_blocks, "most": self.shape.most_tokens}
        return Tiles.of(self.sequences, device=DEVICE, **sizes)

    def run(self, **options: Any) -> Tensor:
        tiles = self.tiles()
        write(self.k, self.v, self.keys, self.values, tiles)
        return paged_attention(self.q, self.keys, self.values, tiles, self.shape, **options).cpu()

    def check(self, **options: Any) -> None:
        found = self.run(**options).double()
        given = [tensor.cpu().double() for tensor in (self.q, self.keys, self.values)]
        expected = attention_naive(*given, self.sequences, **options)
        assert (found - expected).abs().max() <= TOLERANCE[self.q.dtype]


@pytest.mark.parametrize("dtype", TOLERANCE, ids=lambda dtype: str(dtype).removeprefix("torch."))
def test_equals_the_specification_in_every_type(dtype: torch.dtype) -> None:
    Case(MIXED, Shape(6, 2, 64, 16, dtype)).check()


@pytest.mark.parametrize("block_size", [16, 32])
@pytest.mark.parametrize("dim", [64, 80, 96, 128, 256])
def test_heads_and_blocks_of_every_size(dim: int, block_size: int) -> None:
    Case([(0, 1), (70, 1), (0, 5), (30, 4)], Shape(2, 1, dim, block_size, torch.float32)).check()


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (9, 3), (8, 1), (20, 1), (40, 2)])
def test_heads_in_groups(heads: int, kv_heads: int) -> None:
    Case([(0, 1), (40, 1), (3, 30)], Shape(heads, kv_heads, 64, 16, torch.float32)).check()


@pytest.mark.parametrize("window", [1, 10, 16, 17, 64, 1000])
def test_a_window_hides_what_lies_before_it(window: int) -> None:
    Case(MIXED, Shape(2, 1, 64, 16, torch.float32)).check(window=window)


@pytest.mark.parametrize("cap", [0.5, 30.0])
def test_scores_may_be_capped(cap: float) -> None:
    Case(MIXED, Shape(2, 1, 64, 16, torch.float32)).check(soft_cap=cap, window=50)


def test_a_tokens_bits_do_not_depend_on_what_shares_its_step() -> None:
    shape = Shape(6, 2, 64, 16, torch.float32)
    whole = Case(MIXED, shape)
    found = whole.run()
    row = 0
    for sequence in whole.sequences:
        own = slice(row, row + sequence.count)
        alone = Tiles.of([sequence], block_size=16, num_blocks=whole.num_blocks, most=shape.most_tokens, device=DEVICE)
        again = paged_attention(whole.q[own], whole.keys, whole.values, alone, shape).cpu()
        assert torch.equal(again, found[own])
        row += sequence.count


def test_a_prompt_in_a_step_takes_no_memory_for_parts() -> None:
    """Only tokens that decode have any: 2,048 tokens of an 8B model would take 268 MB, for three that decode."""
    case = Case([(0, 40), (100, 1), (33, 20), (20, 1), (3, 1)], Shape(6, 2, 64, 16, torch.float32))
    with recording((attention, "combine")) as recorded:
        case.check()
    ((_, grid, (_, parts, notes, *_), _),) = recorded.launches
    assert grid == (3, 6)
    assert parts.shape == (attention.SEGMENTS, 3, 6, 64)
    assert notes.shape == (attention.SEGMENTS, 3, 6, 2)


def test_large_scores_neither_overflow_nor_lose_anybody() -> None:
    case = Case([(0, 1), (90, 1), (0, 9)], Shape(2, 1, 64, 16, torch.float32))
    case.q *= 1e4
    case.check()


def test_memory_that_was_never_written_is_never_read(unwritten_is_nan: None) -> None:
    """Parts of segments that see nothing, and what stands behind a head's width."""
    assert torch.empty(3).isnan().all()
    Case(MIXED, Shape(4, 2, 80, 16, torch.float32)).check()


def test_the_same_step_gives_the_same_bits() -> None:
    case = Case(MIXED, Shape(6, 2, 64, 16, torch.bfloat16))
    first = case.run()
    # A race shows now and then on a GPU; the interpreter runs one program after the other.
    assert all(torch.equal(case.run(), first) for _ in range(20 if DEVICE.type == "cuda" else 1))


@pytest.mark.filterwarnings("ignore:All-NaN", "ignore:invalid value", "ignore:overflow")  # numpy's
@pytest.mark.parametrize("poison", [torch.nan, torch.inf, 1e30])
def test_nothing_of_another_sequences_cache_reaches_a_token(poison: float) -> None:
    case = Case(MIXED, Shape(2, 1, 64, 16, torch.float32))
    clean = case.run()
    other = case.sequences[2]
    for pool in (case.keys, case.values):
        pool[list(other.blocks)] = poison
    dirty = case.run()
    row = sum(sequence.count for sequence in case.sequences[:2])
    others = [token for token in range(len(clean)) if token != row]
    assert torch.equal(dirty[others], clean[others])
    assert not torch.equal(dirty[row], clean[row])


def test_blocks_beyond_what_32_bits_count() -> None:
    """Positions more than 2³¹ numbers into a pool, whose memory is asked for and hardly touched."""
    shape, far = Shape(2, 1, 64, 16, torch.float16), (1 << 31) // (16 * 64) + 5
    near = Case([(20, 1), (0, 5)], shape)
    sequences = [Sequence(own.start, own.count, [block + far for block in own.blocks]) for own in near.sequences]
    size: dict[str, Any] = {"block_size": 16, "most": shape.most_tokens, "device": DEVICE}
    tiles = Tiles.of(sequences, num_blocks=far + near.num_blocks, **size)
    pools = []
    for pool in (near.keys, near.values):
        large = torch.empty(far + near.num_blocks, 16, 1, 64, dtype=torch.float16, device=DEVICE)
        large[far:] = pool
        pools.append(large)
    write(near.k, near.v, *pools, tiles)
    found = paged_attention(near.q, *pools, tiles, shape).cpu()
    assert torch.equal(found, near.run())


def test_what_is_stored_lies_where_the_blocks_say() -> None:
    case = Case(MIXED, Shape(2, 1, 64, 16, torch.float32))
    tiles = case.tiles()
    before = case.keys.clone()
    write(case.k, case.v, case.keys, case.values, tiles)
    places = tiles.places.long()
    assert torch.equal(case.keys.view(-1, 1, 64)[places], case.k)
    assert torch.equal(case.values.view(-1, 1, 64)[places], case.v)
    case.keys.view(-1, 1, 64)[places] = before.view(-1, 1, 64)[places]
    assert torch.equal(case.keys.nan_to_num(), before.nan_to_num())


def test_the_engines_backend_equals_torchs() -> None:
    sizes: dict[str, Any] = {"num_layers": 2, "num_heads": 4, "num_kv_heads": 2, "head_dim": 64, "num_blocks": 40}
    sizes |= {"block_size": 16, "device": DEVICE, "dtype": torch.float32, "windows": (None, 20)}
    both = TritonAttention(**sizes), TorchAttention(**sizes)
    generator = torch.Generator().manual_seed(1)
    tables = [list(range(index * 8, index * 8 + 8)) for index in range(3)]
    starts = [0, 0, 0]
    for counts in ((40, 7, 1), (1, 1, 1), (3, 1, 30), (1, 1, 1)):
        rows = [Row([1] * count, start, table) for count, start, table in zip(counts, starts, tables, strict=True)]
        steps = [backend.begin(rows) for backend in both]
        tokens = sum(counts)
        for layer in range(2):
            qkv = torch.randn(tokens, 8, 64, generator=generator).to(DEVICE)
            q, k, v = qkv.split_with_sizes([4, 2, 2], 1)
            ours, theirs = (backend.attend(layer, q, k, v, step) for backend, step in zip(both, steps, strict=True))
            torch.testing.assert_close(ours, theirs, atol=2e-6, rtol=1e-5)
        starts = [start + count for start, count in zip(starts, counts, strict=True)]


@pytest.mark.parametrize(
    ("sequence", "message"),
    [
        (Sequence(16, 1, [0]), "1 blocks of 16 for 17 positions"),
        (Sequence(0, 1, [4]), "there are 4"),
        (Sequence(0, 1, [-1]), "there are 4"),
        (Sequence(0, 0, [0]), "0 tokens"),
        (Sequence(-1, 2, [0]), "from -1"),
    ],
)
def test_blocks_that_are_not_there_are_refused(sequence: Sequence, message: str) -> None:
    with pytest.raises(AttentionArgumentError, match=message):
        Tiles.of([sequence], block_size=16, num_blocks=4, most=4, device=DEVICE)


def test_sizes_that_no_kernel_is_for_are_refused() -> None:
    for sizes, argument in (((4, 2, 72, 16), "head_dim"), ((4, 2, 64, 8), "block_size"), ((5, 2, 64, 16), "num_heads")):
        with pytest.raises(AttentionArgumentError) as refused:
            Shape(*sizes, torch.float32)
        assert refused.value.argument == argument


def test_tensors_that_do_not_fit_are_refused() -> None:
    case = Case([(0, 2)], Shape(4, 2, 64, 16, torch.float32))
    tiles, pools = case.tiles(), (case.keys, case.values)
    wrong = (case.q[:1], case.q[:, :2], case.q.double(), case.q.transpose(1, 2).contiguous().transpose(1, 2))
    for q in wrong:
        with pytest.raises(AttentionArgumentError, match=r"^q: "):
            paged_attention(q, *pools, tiles, case.shape)
    with pytest.raises(AttentionArgumentError, match=r"^keys: "):
        paged_attention(case.q, case.keys.transpose(0, 1), case.values, tiles, case.shape)
    for values in (case.values[1:], case.values.half(), case.values.to("meta")):
        with pytest.raises(AttentionArgumentError, match=r"^values: "):
            paged_attention(case.q, case.keys, values, tiles, case.shape)
    for options in ({"window": 0}, {"window": -1}, {"soft_cap": 0.0}, {"soft_cap": -3.0}, {"soft_cap": float("nan")}):
        with pytest.raises(AttentionArgumentError, match=f"^{next(iter(options))}: "):
            paged_attention(case.q, *pools, tiles, case.shape, **options)
    with pytest.raises(AttentionArgumentError, match=r"^v: "):
        write(case.k, case.v.half(), *pools, tiles)
