"""One recording of a decode step's launches serves every batch: each replay equals the specification."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sgmv import (
    EmbeddingWeights,
    FixedPlan,
    GainRows,
    Plan,
    SgmvArgumentError,
    SlotWeights,
    StepNumbers,
    Storage,
    sgmv_naive,
    triton_embedding,
    triton_gain,
    triton_site,
)
from sgmv.torch_site import TorchSite
from sgmv.triton_embedding import TritonEmbeddingSite
from sgmv.triton_gain import TritonGain
from sgmv.triton_site import TritonSite
from tests.kernels.replay import Recorded, recording

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
CPU = torch.device("cpu")
ROWS, IN, SLICES, VOCABULARY = 18, 67, (40, 13, 13), 31
WIDTH = sum(SLICES)
STORAGE = Storage(slots=8, max_rank=64)
KERNELS = (
    (triton_embedding, "embed"),
    (triton_gain, "amplify"),
    (triton_site, "shrink"),
    (triton_site, "expand"),
)


def matrix(seed: int, rows: int, columns: int) -> Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)) / math.sqrt(columns)


class Adapter:
    """One tenant's: a linear's matrices, gains where ``seed`` is even, and an embedding where it divides by 3."""

    def __init__(self, seed: int, rank: int) -> None:
        ranks = (rank, 0 if seed % 4 == 1 else max(1, rank // 2), rank)
        self.linear = SlotWeights(
            tuple(matrix(seed + i, r, IN) if r else None for i, r in enumerate(ranks)),
            tuple(matrix(seed - i, w, r) if r else None for i, (w, r) in enumerate(zip(SLICES, ranks, strict=True))),
            (1.5, 2.5, 0.5),
        )
        self.gain = matrix(seed, 1, WIDTH)[0] if seed % 2 == 0 else None
        self.embedding = None
        if seed % 3 == 0:
            self.embedding = EmbeddingWeights(matrix(seed, VOCABULARY, rank), matrix(seed + 9, rank, IN))


class Step:
    """An embedding's adapters, a linear of zeros, DoRA and LoRA: launched once, and then replayed alone."""

    def __init__(self) -> None:
        self.numbers = StepNumbers((FixedPlan.size(ROWS), ROWS), DEVICE)
        self.plan = FixedPlan(ROWS, self.numbers.parts[0])
        self.tokens = self.numbers.parts[1]
        place: dict[str, Any] = {"device": DEVICE, "dtype": torch.float32, "storage": STORAGE}
        self.embedding = TritonEmbeddingSite(VOCABULARY, IN, **place)
        self.gain = TritonGain(WIDTH, None, **place)
        self.site = TritonSite(IN, SLICES, DEVICE, torch.float32, STORAGE)
        self.x, self.y = torch.zeros(ROWS, IN, device=DEVICE), torch.zeros(ROWS, WIDTH, device=DEVICE)
        self.held: dict[int, Adapter] = {}
        self.recorded: Recorded | None = None

    def load(self, slot: int, adapter: Adapter) -> None:
        self.clear(slot)
        self.held[slot] = adapter
        self.site.set(slot, adapter.linear)
        if adapter.gain is not None:
            self.gain.set(slot, adapter.gain)
        if adapter.embedding is not None:
            self.embedding.set(slot, adapter.embedding)

    def clear(self, slot: int) -> None:
        self.held.pop(slot, None)
        for part in (self.site, self.gain, self.embedding):
            part.clear(slot)

    def _launch(self) -> Recorded:
        with recording(*KERNELS) as recorded:
            self.embedding.apply(self.x, self.tokens, self.plan)
            self.gain.apply(self.y, GainRows(self.plan, self.gain.held, DEVICE))
            self.site.apply(self.y, self.x, self.plan)
        assert [kernel.__name__ for kernel, *_ in recorded.launches] == ["embed", "amplify", "shrink", "expand"]
        return recorded

    def run(self, slots: list[int], seed: int = 0) -> tuple[Tensor, Tensor]:
        """One batch, as the engine would lay it out. :returns: x with the embeddings' part, and y."""
        host = self.numbers.begin()
        for part in host:
            part[:] = 0x7F7F7F7F  # what is not laid out is garbage
        self.plan.fill(slots, host[0])
        tokens = np.random.default_rng(seed).integers(0, VOCABULARY, ROWS)
        host[1][:] = tokens
        self.numbers.copy()
        generator = torch.Generator().manual_seed(seed)
        x, y = torch.randn(ROWS, IN, generator=generator), torch.randn(ROWS, WIDTH, generator=generator)
        self.x.copy_(x)
        self.y.copy_(y)
        if self.recorded is None:
            self.recorded = self._launch()
        else:
            self.recorded.replay()
        found = self.x.cpu().clone(), self.y.cpu().clone()
        self._compare(x, y, tokens, slots, found)
        return found

    def _compare(self, x: Tensor, y: Tensor, tokens: Any, slots: list[int], found: tuple[Tensor, Tensor]) -> None:
        expected, products = x.double(), y.double()
        for row, slot in enumerate(slots):
            own = self.held.get(slot)
            if own is not None and own.embedding is not None:
                expected[row] += own.embedding.a[int(tokens[row])].double() @ own.embedding.b.double()
            if own is not None and own.gain is not None:
                products[row] += own.gain.double() * products[row]
        doubled = {slot: double(own.linear) for slot, own in self.held.items()}
        sgmv_naive(products, expected, slots, doubled, SLICES)
        torch.testing.assert_close(found[0].double(), expected, atol=2e-5, rtol=1e-5)
        torch.testing.assert_close(found[1].double(), products, atol=2e-5, rtol=1e-5)
        for row in range(ROWS):
            if row >= len(slots) or slots[row] not in self.held:
                assert torch.equal(found[0][row], x[row])
                assert torch.equal(found[1][row], y[row])


def double(own: SlotWeights) -> SlotWeights:
    a, b = (tuple(None if m is None else m.double() for m in matrices) for matrices in (own.a, own.b))
    return SlotWeights(a, b, own.scaling)


MIXES = {
    "one adapter": [2] * ROWS,
    "many": [row % 7 - 1 for row in range(ROWS)],
    "none": [-1] * ROWS,
    "distinct": [0, 1, 2, 3, 4, 5, 6, 7, -1],
    "fewer rows": [3, 3, 1],
    "one row": [5],
    "nobody": [],
    "unknown": [7, 9000, -5, 0, 7],
    "skewed": [1] + [0] * (ROWS - 1),
}


@pytest.mark.parametrize("first", ["one adapter", "nobody"])
def test_one_recording_serves_every_batch(first: str) -> None:
    """Also where nothing was loaded when it was made."""
    step = Step()
    if first == "one adapter":
        step.load(2, Adapter(2, 8))
    step.run(MIXES[first])
    for slot, rank in enumerate((1, 8, 16, 17, 64, 4, 3)):
        step.load(slot, Adapter(slot, rank))
    for seed, slots in enumerate([*MIXES.values(), MIXES["many"], MIXES["one adapter"]]):
        step.run(slots, seed)


def test_what_is_loaded_overwritten_and_cleared_between_replays_counts_at_once() -> None:
    step, slots = Step(), [0, 1, 1, -1, 3, 0]
    step.run(slots)
    for seed, (slot, rank) in enumerate(((0, 8), (1, 64), (0, 3), (1, 1), (3, 17), (0, 64))):
        step.load(slot, Adapter(seed + 6 * slot, rank))
        step.run(slots, seed)
    step.clear(1)
    step.run(slots, 20)
    step.load(1, Adapter(2, 5))
    step.run(slots, 21)
    for slot in (0, 1, 3):
        step.clear(slot)
    step.run(slots, 22)


def test_a_replayed_row_has_the_bits_of_a_step_that_was_not_recorded() -> None:
    step = Step()
    for slot, rank in enumerate((8, 17, 64)):
        step.load(slot, Adapter(slot + 1, rank))
    slots = [row % 4 - 1 for row in range(ROWS)]
    step.run(slots)
    whole = step.run(slots, 5)
    for rows in (1, 3, 17):
        part = step.run(slots[:rows], 5)
        assert torch.equal(part[1][:rows], whole[1][:rows])
    generator = torch.Generator().manual_seed(5)
    x, y = (torch.randn(ROWS, width, generator=generator).to(DEVICE) for width in (IN, WIDTH))
    plan = Plan(slots)
    chosen = GainRows.of(plan, step.gain.held, DEVICE)
    assert chosen is not None
    step.embedding.apply(x, step.tokens, plan)
    step.gain.apply(y, chosen)
    step.site.apply(y, x, plan)
    assert torch.equal(y.cpu(), whole[1])


@pytest.mark.filterwarnings("ignore:invalid value", "ignore:overflow")  # numpy's, in the interpreter
def test_what_a_slot_held_reaches_nobody_after_it_was_overwritten() -> None:
    step = Step()
    poisoned = Adapter(6, 16)
    for own in (*poisoned.linear.a, *poisoned.linear.b):
        assert own is not None
        own.fill_(float("nan"))
    step.site.set(0, poisoned.linear)
    step.load(1, Adapter(3, 8))
    step.run([1, 1])  # recorded while slot 0 holds NaN
    step.load(0, Adapter(4, 3))
    step.run([0, 1, 0, -1])
    step.clear(0)
    step.run([0, 1, 0, -1])


def test_nothing_moves_and_one_copy_brings_everything() -> None:
    step = Step()
    places = [part.data_ptr() for part in (*step.numbers.parts, *step.plan.on(DEVICE))]
    tables = [part._table.numbers.data_ptr() for part in (step.site, step.gain, step.embedding)]
    for slot in range(8):
        step.load(slot, Adapter(slot, 8))
    step.run(list(range(8)))
    for slot in range(8):
        step.clear(slot)
    assert places == [part.data_ptr() for part in (*step.numbers.parts, *step.plan.on(DEVICE))]
    assert tables == [part._table.numbers.data_ptr() for part in (step.site, step.gain, step.embedding)]
    assert all(place % 16 == 0 for place in places)
    whole = step.numbers.parts[0].untyped_storage()
    assert all(part.untyped_storage().data_ptr() == whole.data_ptr() for part in step.numbers.parts)


def test_other_devices_take_the_same_plan() -> None:
    """Torch's operations group rows on the host."""
    numbers = StepNumbers((FixedPlan.size(4),), CPU)
    plan = FixedPlan(4, numbers.parts[0])
    site = TorchSite(IN, SLICES, CPU, torch.float32)
    own = Adapter(1, 8).linear
    site.set(3, own)
    x = torch.randn(4, IN)
    for slots in ([3, -1, 3], [], [-1, 3, 3, 3]):
        plan.fill(slots, numbers.begin()[0])
        y, expected = torch.zeros(4, WIDTH), torch.zeros(4, WIDTH)
        site.apply(y, x, plan)
        sgmv_naive(expected, x, slots, {3: own}, SLICES)
        torch.testing.assert_close(y, expected)
        assert plan.work.count == len([slot for slot in slots if slot == 3][:1])


def test_only_as_much_of_the_last_part_is_copied_as_is_said() -> None:
    numbers = StepNumbers((3, 10), DEVICE)
    first, last = numbers.begin()
    first[:], last[:] = 7, 8
    numbers.copy(last=4)
    assert numbers.parts[0].tolist() == [7, 7, 7]
    assert numbers.parts[1].tolist() == [8, 8, 8, 8, 0, 0, 0, 0, 0, 0]


def test_what_does_not_fit_is_refused_by_name_and_changes_nothing() -> None:
    step = Step()
    step.load(0, Adapter(1, 8))
    step.run([0, 0])
    host = step.numbers.begin()[0]
    for slots, argument in (([0] * (ROWS + 1), "slots"), ([0, 1.5], "slots"), ([1 << 31], "slots")):
        with pytest.raises(SgmvArgumentError) as refused:
            step.plan.fill(slots, host)  # type: ignore[arg-type]
        assert refused.value.argument == argument
    with pytest.raises(SgmvArgumentError, match="host"):
        step.plan.fill([0], host[:-1])
    assert step.plan.slots == (0,)
    with pytest.raises(SgmvArgumentError, match="begin"):
        StepNumbers((4,), DEVICE).copy()
    with pytest.raises(SgmvArgumentError, match="last: 19"):
        step.numbers.copy(last=ROWS + 1)
    with pytest.raises(SgmvArgumentError, match="numbers"):
        FixedPlan(4, torch.zeros(3, dtype=torch.int32))
    with pytest.raises(SgmvArgumentError, match="num_rows"):
        FixedPlan(0, torch.zeros(0, dtype=torch.int32))
    with pytest.raises(SgmvArgumentError, match="sizes"):
        StepNumbers((), DEVICE)


def test_a_site_that_may_move_its_tables_refuses_a_fixed_plan() -> None:
    plan = FixedPlan(2, torch.zeros(FixedPlan.size(2), dtype=torch.int32, device=DEVICE))
    site = TritonSite(IN, SLICES, DEVICE, torch.float32)
    with pytest.raises(SgmvArgumentError, match="plan: "):
        site.apply(torch.zeros(2, WIDTH, device=DEVICE), torch.zeros(2, IN, device=DEVICE), plan)


@pytest.mark.parametrize("kind", [TritonSite, TorchSite])
def test_slots_and_ranks_beyond_the_storage_are_refused(kind: type[TorchSite]) -> None:
    site = kind(IN, SLICES, DEVICE, torch.float32, Storage(slots=2, max_rank=8))
    site.set(1, Adapter(2, 8).linear)
    held = site.num_bytes
    for slot, rank, argument in ((2, 8, "slot"), (-1, 8, "slot"), (0, 9, "weights.a[0]"), (1, 9, "weights.a[0]")):
        with pytest.raises(SgmvArgumentError) as refused:
            site.set(slot, Adapter(2, rank).linear)
        assert refused.value.argument == argument
    assert site.num_bytes == held
    for sizes in ({"slots": 0}, {"max_rank": 0}):
        with pytest.raises(SgmvArgumentError, match="at least 1"):
            Storage(**sizes)
