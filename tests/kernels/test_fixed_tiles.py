"""One recording of a decode step's attention serves every batch of at most so many sequences."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

from paged_attention import AttentionArgumentError, FixedTiles, Sequence, Tiles, attention, attention_naive
from paged_attention.attention import Shape, paged_attention, write
from sgmv import FixedPlan, StepNumbers
from tests.kernels.replay import Recorded, recording

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
TOKENS, BLOCKS, LONGEST = 5, 30, 80
SHAPE = Shape(2, 1, 64, 16, torch.float32)
KERNELS = ((attention, "store"), (attention, "attend"), (attention, "combine"))


class Step:
    """A layer's attention over a pool that holds NaN wherever no sequence has written."""

    def __init__(self, shape: Shape = SHAPE, window: int | None = None) -> None:
        self.shape, self.window, size = shape, window, shape.block_size
        room = FixedTiles.tables_size(TOKENS, max_length=LONGEST, block_size=size)
        self.numbers = StepNumbers((FixedTiles.size(TOKENS), room), DEVICE)
        self.fixed = FixedTiles(TOKENS, *self.numbers.parts, block_size=size, num_blocks=BLOCKS)
        pool = (BLOCKS, size, shape.num_kv_heads, shape.head_dim)
        self.keys, self.values = (torch.full(pool, torch.nan, device=DEVICE) for _ in range(2))
        self.q = torch.zeros(TOKENS, shape.num_heads, shape.head_dim, device=DEVICE)
        self.k, self.v = (torch.zeros(TOKENS, *pool[2:], device=DEVICE) for _ in range(2))
        self.out, self.recorded = self.q, Recorded()

    def run(self, starts: list[int], seed: int) -> Tensor:
        """Sequences of these lengths get a token more. :returns: ``[TOKENS, heads, D]``."""
        generator, size = torch.Generator().manual_seed(seed), self.shape.block_size
        free = random.Random(seed).sample(range(BLOCKS), BLOCKS)
        sequences = [Sequence(start, 1, [free.pop() for _ in range(start // size + 1)]) for start in starts]
        for pool in (self.keys, self.values):
            pool.fill_(torch.nan)
            for sequence in sequences:
                for position in range(sequence.start):
                    own = torch.randn(pool.shape[2:], generator=generator)
                    pool[sequence.blocks[position // size], position % size] = own
        for tensor in (self.q, self.k, self.v):
            tensor.copy_(torch.randn(tensor.shape, generator=generator))
        host = self.numbers.begin()
        for part in host:
            part[:] = 0x7F7F7F7F  # what is not laid out is garbage
        self.numbers.copy(self.fixed.fill(sequences, *host))
        before = self.keys.clone()
        if self.recorded.launches:
            self.recorded.replay()
        else:
            with recording(*KERNELS) as self.recorded:
                write(self.k, self.v, self.keys, self.values, self.fixed.tiles)
                given = (self.q, self.keys, self.values, self.fixed.tiles, self.shape)
                self.out = paged_attention(*given, window=self.window)
        assert [launch[0].__name__ for launch in self.recorded.launches] == ["store", "attend", "combine"]
        self._compare(sequences, before)
        return self.out.cpu().clone()

    def _compare(self, sequences: list[Sequence], before: Tensor) -> None:
        count = len(sequences)
        changed = (self.keys.nan_to_num() != before.nan_to_num()).flatten(2).any(2).nonzero().tolist()
        size = self.shape.block_size
        ends = [[own.blocks[own.start // size], own.start % size] for own in sequences]
        assert sorted(changed) == sorted(ends), "what is stored lies at the sequences' ends, and nowhere else"
        given = [tensor.cpu().double() for tensor in (self.q[:count], self.keys, self.values)]
        expected = attention_naive(*given, sequences, window=self.window)
        if count:
            assert (self.out[:count].cpu().double() - expected).abs().max() < 5e-6
        assert not self.out[count:].any()


BATCHES = [[0, 5, 15, 16, 79], [70], [], [31, 32, 33], [40] * 5, [0]]


@pytest.mark.parametrize("first", [0, 2])
def test_one_recording_serves_every_batch(first: int) -> None:
    step = Step()
    for seed, starts in enumerate([BATCHES[first], *BATCHES]):
        step.run(starts, seed)


def test_with_a_window_and_long_blocks() -> None:
    step = Step(Shape(2, 2, 80, 32, torch.float32), window=20)
    for seed, starts in enumerate(BATCHES[:3]):
        step.run(starts, seed)


def test_a_token_has_the_bits_of_a_step_that_was_not_recorded() -> None:
    step = Step()
    step.run(BATCHES[1], 0)
    found = step.run(BATCHES[0], 1)
    free = random.Random(1).sample(range(BLOCKS), BLOCKS)
    sequences = [Sequence(start, 1, [free.pop() for _ in range(start // 16 + 1)]) for start in BATCHES[0]]
    tiles = Tiles.of(sequences, block_size=16, num_blocks=BLOCKS, most=SHAPE.most_tokens, device=DEVICE)
    assert torch.equal(paged_attention(step.q, step.keys, step.values, tiles, SHAPE).cpu(), found)


def test_one_copy_brings_the_adapters_plan_and_attentions_tiles() -> None:
    """As README.md of sgmv has it: the block tables last, and of them only what is used."""
    room = FixedTiles.tables_size(TOKENS, max_length=LONGEST, block_size=16)
    numbers = StepNumbers((FixedPlan.size(TOKENS), FixedTiles.size(TOKENS), room), DEVICE)
    plan = FixedPlan(TOKENS, numbers.parts[0])
    fixed = FixedTiles(TOKENS, *numbers.parts[1:], block_size=16, num_blocks=BLOCKS)
    host = numbers.begin()
    for part in host:
        part[:] = 77
    plan.fill([4, -1, 4], host[0])
    sequences = [Sequence(20, 1, [9, 8]), Sequence(0, 1, [3]), Sequence(31, 1, [5, 6])]
    numbers.copy(last=fixed.fill(sequences, *host[1:]))
    rows = plan.on(numbers.parts[0].device)
    assert rows.tiles.tolist() == [[4, 0, 2]] + [[0, 0, 0]] * (TOKENS - 1)
    assert rows.rows[:2].tolist() == [0, 2]
    assert rows.slots.tolist() == [4, -1, 4, -1, -1]
    found = Tiles.of(sequences, block_size=16, num_blocks=BLOCKS, most=SHAPE.most_tokens, device=DEVICE)
    assert torch.equal(fixed.tiles.decode[:3], found.decode)
    assert fixed.tiles.decode[3:].tolist() == [[3, 0, 0, 0], [4, 0, 0, 0]]
    assert fixed.tiles.places.tolist() == [*found.places.tolist(), -1, -1]
    assert fixed.tiles.tables.tolist() == [9, 8, 3, 5, 6] + [0] * (room - 5)


@pytest.mark.parametrize(
    ("sequences", "message"),
    [
        ([Sequence(0, 1, [0])] * 3, "3, there is room for 2"),
        ([Sequence(0, 2, [0])], "2 new tokens"),
        ([Sequence(16, 1, [0])], "1 blocks of 16 for 17 positions"),
        ([Sequence(0, 1, [4])], "there are 4"),
        ([Sequence(40, 1, [0, 1, 2]), Sequence(0, 1, [3])], "4 blocks with it, there is room for 3"),
    ],
)
def test_steps_that_do_not_fit_are_refused(sequences: list[Sequence], message: str) -> None:
    numbers = StepNumbers((FixedTiles.size(2), 3), DEVICE)
    fixed = FixedTiles(2, *numbers.parts, block_size=16, num_blocks=4)
    with pytest.raises(AttentionArgumentError, match=message) as refused:
        fixed.fill(sequences, *numbers.begin())
    assert refused.value.argument == "sequences"


def test_places_that_do_not_fit_are_refused() -> None:
    def make(tokens: int, numbers: Tensor, tables: Tensor) -> FixedTiles:
        return FixedTiles(tokens, numbers, tables, block_size=16, num_blocks=4)

    ten, three = torch.zeros(10, dtype=torch.int32), torch.zeros(3, dtype=torch.int32)
    for given, argument in (
        ((0, ten, three), "num_tokens"),
        ((3, ten, three), "numbers"),
        ((2, ten.long(), three), "numbers"),
        ((2, ten, three.view(1, 3)), "tables"),
    ):
        with pytest.raises(AttentionArgumentError) as refused:
            make(*given)
        assert refused.value.argument == argument
    for host, argument in (((ten[1:], three), "host"), ((ten, three[1:]), "host_tables")):
        with pytest.raises(AttentionArgumentError) as refused:
            make(2, ten, three).fill([], *(part.numpy() for part in host))
        assert refused.value.argument == argument
