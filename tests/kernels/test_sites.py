"""Both kinds of sites through random batches, shapes and loads; what each row's bits depend on."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sgmv import Plan, Site, SlotWeights, make_site, sgmv_naive
from sgmv.torch_site import TorchSite

SLICES = (12, 5)
IN = 9
FLOAT = torch.float32


def compiled(inputs: int, slices: tuple[int, ...]) -> Site:
    return make_site(inputs, slices)


def plain(inputs: int, slices: tuple[int, ...]) -> Site:
    return TorchSite(inputs, slices, torch.device("cpu"), FLOAT)


both = pytest.mark.parametrize("make", [compiled, plain])


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def weights(
    seed: int, ranks: tuple[int, ...], slices: tuple[int, ...] = SLICES, inputs: int = IN, dtype: torch.dtype = FLOAT
) -> SlotWeights:
    """A rank of 0 leaves its slice out."""
    generator = torch.Generator().manual_seed(seed)

    def matrix(rows: int, columns: int) -> torch.Tensor | None:
        if not rows or not columns:
            return None
        return (torch.randn(rows, columns, generator=generator) / math.sqrt(columns)).to(dtype)

    return SlotWeights(
        tuple(matrix(rank, inputs) for rank in ranks),
        tuple(matrix(width, rank) for width, rank in zip(slices, ranks, strict=True)),
        tuple(0.5 + index for index in range(len(slices))),
    )


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    slices = tuple(draw(st.lists(st.integers(1, 530), min_size=1, max_size=3)))
    ranks = st.tuples(*[st.sampled_from([0, 1, 2, 3, 4, 5, 7, 8, 9, 12, 16, 17, 33]) for _ in slices])
    adapters = draw(st.dictionaries(st.integers(0, 9), ranks, max_size=5))
    rows = draw(st.integers(0, 150) if draw(st.booleans()) else st.integers(0, 20))
    chosen = st.integers(-1, 11) if not adapters or draw(st.booleans()) else st.sampled_from(sorted(adapters))
    return {
        "inputs": draw(st.integers(1, 130)),
        "slices": slices,
        "adapters": adapters,
        "slots": draw(st.lists(chosen, min_size=rows, max_size=rows)),
        "gap": draw(st.sampled_from([0, 3])),
        "seed": draw(st.integers(0, 2**20)),
        "dtype": draw(st.sampled_from([torch.float32, torch.bfloat16, torch.float16])),
    }


@both
@settings(max_examples=120, deadline=None)
@given(case=cases())
def test_any_batch_equals_the_specification_and_writes_nothing_else(make: Any, case: dict[str, Any]) -> None:
    inputs, slices, slots, gap = case["inputs"], case["slices"], case["slots"], case["gap"]
    site, exact = make(inputs, slices), {}
    for slot, ranks in case["adapters"].items():
        own = weights(case["seed"] + slot, ranks, slices, inputs, case["dtype"])
        site.set(slot, own)
        a, b = ([m if m is None else m.double() for m in matrices] for matrices in (own.a, own.b))
        exact[slot] = SlotWeights(tuple(a), tuple(b), own.scaling)
    width, generator = sum(slices), torch.Generator().manual_seed(case["seed"])
    x = torch.randn(len(slots), inputs + gap, generator=generator)[:, :inputs]
    whole = torch.full((len(slots), width + gap), float("nan"))
    y = whole[:, :width]
    y[:] = torch.randn(len(slots), width, generator=generator)
    before, expected = y.clone(), torch.zeros(len(slots), width, dtype=torch.float64)
    site.apply(y, x, Plan(slots))
    sgmv_naive(expected, x.double(), slots, exact, slices)
    torch.testing.assert_close((y.double() - before.double()), expected, atol=5e-5, rtol=1e-4)
    assert whole[:, width:].isnan().all()
    for row, slot in enumerate(slots):
        if slot not in exact:
            assert torch.equal(y[row], before[row])


def test_a_rows_bits_are_the_same_in_any_batch_and_on_any_number_of_threads() -> None:
    chooser, slices, inputs = random.Random(1), (70, 300), 133
    site = make_site(inputs, slices)
    for slot, rank in enumerate((1, 4, 8, 13, 16, 64)):
        site.set(slot, weights(slot, (rank, max(rank - 3, 0)), slices, inputs))
    rows, results = torch.randn(6, inputs), dict[int, torch.Tensor]()
    before = torch.get_num_threads()
    try:
        for number in range(120):
            torch.set_num_threads(1 + number % 2)
            slots = [chooser.randrange(-1, 6) for _ in range(chooser.choice((1, 2, 5, 16, 33, 129, 300)))]
            if number % 3 == 0:
                slots.sort()
            x, y = torch.zeros(len(slots), inputs), torch.zeros(len(slots), sum(slices))
            for row, slot in enumerate(slots):
                x[row] = rows[slot]
            site.apply(y, x, Plan(slots))
            for row, slot in enumerate(slots):
                assert torch.equal(y[row], results.setdefault(slot, y[row])), f"slot {slot}, row {row} of {len(slots)}"
    finally:
        torch.set_num_threads(before)


@both
def test_any_sequence_of_loads_and_batches_equals_the_specification(make: Any, threads: int) -> None:
    chooser, site, held = random.Random(3), make(IN, SLICES), dict[int, SlotWeights]()
    for number in range(400):
        slot = chooser.randrange(12)
        if chooser.random() < 0.3:
            held[slot] = weights(number, (chooser.choice((0, 1, 4, 8, 12, 17)), chooser.choice((1, 8))))
            site.set(slot, held[slot])
        elif chooser.random() < 0.2:
            held.pop(slot, None)
            site.clear(slot)
        slots = [chooser.randrange(-1, 12) for _ in range(chooser.choice((1, 7, 16, 70)))]
        x = torch.randn(len(slots), IN)
        y, expected = torch.zeros(len(slots), sum(SLICES)), torch.zeros(len(slots), sum(SLICES))
        site.apply(y, x, Plan(slots))
        sgmv_naive(expected, x, slots, held, SLICES)
        torch.testing.assert_close(y, expected, atol=1e-4, rtol=1e-4)
        assert site.order == tuple(sorted(held))


@both
def test_each_adapter_is_held_once_at_its_true_size_and_unloading_gives_back(make: Any) -> None:
    site = make(IN, SLICES)
    ranks = {0: (8, 8), 1: (3, 0), 2: (17, 1)}
    for slot, own in ranks.items():
        site.set(slot, weights(slot, own))

    def size(count: int) -> int:
        return -(-4 * count // 16) * 16  # each matrix begins at a multiple of 16 bytes

    each = {
        slot: sum(size(rank * IN) + size(rank * width) for rank, width in zip(own, SLICES, strict=True))
        for slot, own in ranks.items()
    }
    assert site.num_bytes == sum(each.values())
    site.apply(torch.zeros(50, sum(SLICES)), torch.randn(50, IN), Plan([row % 3 for row in range(50)]))
    site.clear(0)
    assert site.num_bytes == each[1] + each[2]
    site.clear(1)
    site.clear(2)
    assert site.num_bytes == 0


@both
def test_the_weights_given_may_change_afterwards(make: Any) -> None:
    site, own = make(IN, SLICES), weights(1, (4, 4))
    site.set(0, own)
    before, after, x = torch.zeros(1, sum(SLICES)), torch.zeros(1, sum(SLICES)), torch.randn(1, IN)
    site.apply(before, x, Plan([0]))
    for matrix in (*own.a, *own.b):
        assert matrix is not None
        matrix.fill_(float("nan"))
    site.apply(after, x, Plan([0]))
    assert torch.equal(before, after)


def test_a_plan_names_its_slots_rows_and_work() -> None:
    plan = Plan([3, -1, 0, 3, 3])
    assert plan.slots == (0, 3)
    assert plan.rows(3) == [0, 3, 4]
    assert plan.span(3) == [0, 3, 4]
    assert plan.span(0) == slice(2, 3)
    assert plan.work.count == 2
    assert Plan([0] * 9 + [1]).work.count == 4, "threads share a decode step's rows a few at a time"
    assert Plan([0] * 160).work.count == 10
