"""Every backend against ``naive.py`` in float64: the delta is compared, not base + delta."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence

import pytest
import torch
from torch import Tensor

from sgmv import Plan, SgmvArgumentError, Site, SlotWeights, backends, make_site, register_backend, sgmv_naive

RAGGED = (40, 13, 13)
IN = 67


def weights(
    rank: int | Sequence[int], slices: Sequence[int] = RAGGED, seed: int = 0, *, inputs: int = IN, scaling: float = 1.5
) -> SlotWeights:
    """Signed, scaled by 1/√K; a rank of 0 leaves its slice out."""
    generator = torch.Generator().manual_seed(seed)
    ranks = [rank] * len(slices) if isinstance(rank, int) else rank

    def matrix(rows: int, columns: int) -> Tensor | None:
        return torch.randn(rows, columns, generator=generator) / math.sqrt(columns) if rows and columns else None

    return SlotWeights(
        a=tuple(matrix(r, inputs) for r in ranks),
        b=tuple(matrix(out, r) for out, r in zip(slices, ranks, strict=True)),
        scaling=tuple(scaling + index for index in range(len(slices))),
    )


def site_of(adapters: dict[int, SlotWeights], slices: Sequence[int] = RAGGED, inputs: int = IN) -> Site:
    site = make_site(inputs, slices)
    for slot, own in adapters.items():
        site.set(slot, own)
    return site


def double(own: SlotWeights) -> SlotWeights:
    def up(matrices: Iterable[Tensor | None]) -> tuple[Tensor | None, ...]:
        return tuple(None if matrix is None else matrix.double() for matrix in matrices)

    return SlotWeights(up(own.a), up(own.b), own.scaling)


def check(adapters: dict[int, SlotWeights], slots: list[int], slices: Sequence[int] = RAGGED) -> None:
    x = torch.randn(len(slots), IN, generator=torch.Generator().manual_seed(7))
    delta = torch.zeros(len(slots), sum(slices))
    site_of(adapters, slices).apply(delta, x, Plan(slots))
    expected = torch.zeros(len(slots), sum(slices), dtype=torch.float64)
    sgmv_naive(expected, x.double(), slots, {slot: double(own) for slot, own in adapters.items()}, slices)
    torch.testing.assert_close(delta.double(), expected, atol=2e-5, rtol=2e-5)
    for row, slot in enumerate(slots):
        assert (slot >= 0 and slot in adapters) == bool(expected[row].any()), f"row {row} of slot {slot}"


def mix(kind: str, rows: int, adapters: int) -> list[int]:
    chooser = random.Random(rows)
    choices = {
        "distinct": [row % adapters for row in range(rows)],
        "uniform": [chooser.randrange(-1, adapters) for _ in range(rows)],
        "zipf": chooser.choices(range(adapters), [1 / (slot + 1) for slot in range(adapters)], k=rows),
        "identical": [0] * rows,
        "skewed": [1] + [0] * (rows - 1),
        "sorted": sorted(chooser.randrange(-1, adapters) for _ in range(rows)),
    }
    return choices[kind]


@pytest.mark.parametrize("kind", ["distinct", "uniform", "zipf", "identical", "skewed", "sorted"])
@pytest.mark.parametrize("rows", [1, 2, 3, 15, 16, 17, 31, 32, 33, 64, 127, 128, 133])
def test_equals_the_specification_for_every_mix_of_adapters(kind: str, rows: int) -> None:
    adapters = {slot: weights(rank, seed=slot) for slot, rank in enumerate((1, 4, 8, 16, 17, 64))}
    check(adapters, mix(kind, rows, len(adapters)))


@pytest.mark.parametrize("rows", [5, 70])
@pytest.mark.parametrize("ranks", [(8, 0, 8), (0, 4, 0), (17, 3, 1), (0, 0, 0)])
def test_slices_may_be_missing_or_differ_in_rank(ranks: tuple[int, ...], rows: int) -> None:
    adapters = {0: weights(8, seed=1), 2: weights(3, seed=3)}
    if any(ranks):
        adapters[1] = weights(ranks, seed=2)
    check(adapters, [row % 3 for row in range(rows)])
    check(adapters, [1] * rows if any(ranks) else [0] * rows)


def test_one_slice() -> None:
    check({0: weights(4, (31,)), 3: weights(9, (31,), 1)}, [0, 3, -1, 3, 0], (31,))


def test_base_rows_and_rows_of_empty_slots_are_not_touched() -> None:
    site = site_of({0: weights(8)})
    y = torch.full((40, sum(RAGGED)), float("nan"))
    slots = [-1, 5, 0, -1] * 10
    y[2::4] = 0
    site.apply(y, torch.randn(40, IN), Plan(slots))
    assert y[2::4].isfinite().all()
    assert y[[row for row in range(40) if row % 4 != 2]].isnan().all()


def test_a_batch_of_base_rows_alone_is_not_active() -> None:
    plan = Plan([-1, -1])
    assert not plan.active
    y = torch.randn(2, sum(RAGGED))
    before = y.clone()
    site_of({0: weights(8)}).apply(y, torch.randn(2, IN), plan)
    assert torch.equal(y, before)


def test_an_empty_batch() -> None:
    site_of({0: weights(8)}).apply(torch.empty(0, sum(RAGGED)), torch.empty(0, IN), Plan([]))


def test_zero_b_adds_exactly_nothing() -> None:
    own = weights(8)
    zero = SlotWeights(own.a, tuple(b.zero_() for b in own.b if b is not None), own.scaling)
    y = torch.randn(9, sum(RAGGED))
    before = y.clone()
    site_of({0: zero, 1: weights(17, seed=1)}).apply(y, torch.randn(9, IN), Plan([0] * 9))
    assert torch.equal(y, before)


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), 3e38, -7.5])
@pytest.mark.parametrize("slots", [[0, 1, 0, 1, -1, 1], [0] * 40 + [1] * 40 + [-1], [0, 0, 0, 1], [1, 0, 0, 0]])
def test_another_tenants_weights_never_touch_my_rows(poison: float, slots: list[int]) -> None:
    """Bit for bit, whatever the other tenant's matrices hold, and whatever the ranks."""
    for other_rank in (4, 8, 17):
        x = torch.randn(len(slots), IN, generator=torch.Generator().manual_seed(1))
        mine = [row for row, slot in enumerate(slots) if slot != 1]
        results = []
        for poisoned in (False, True):
            other = weights(other_rank, seed=9)
            if poisoned:
                for matrix in (*other.a, *other.b):
                    assert matrix is not None
                    matrix.fill_(poison)
            y = torch.zeros(len(slots), sum(RAGGED))
            site_of({0: weights(8), 1: other}).apply(y, x, Plan(slots))
            results.append(y[mine])
        assert results[0].isfinite().all()
        assert torch.equal(*results)


def test_another_tenants_rows_never_touch_mine() -> None:
    site = site_of({0: weights(8), 1: weights(8, seed=1)})
    slots = [0, 1, 1, 1, -1]
    x = torch.randn(5, IN)
    clean, dirty = torch.zeros(5, sum(RAGGED)), torch.zeros(5, sum(RAGGED))
    site.apply(clean, x, Plan(slots))
    x[1:4] = float("nan")
    site.apply(dirty, x, Plan(slots))
    assert torch.equal(clean[0], dirty[0])
    assert not dirty[4].any()


def test_a_slot_that_was_replaced_or_cleared_is_never_served_from_the_packed_operands() -> None:
    slots, x = [0, 1, 0, 1], torch.randn(4, IN)
    site = site_of({0: weights(8), 1: weights(8, seed=1)})
    site.apply(torch.zeros(4, sum(RAGGED)), x, Plan(slots))
    site.set(1, weights(4, seed=2))
    replaced, expected = torch.zeros(4, sum(RAGGED)), torch.zeros(4, sum(RAGGED))
    site.apply(replaced, x, Plan(slots))
    sgmv_naive(expected, x, slots, {0: weights(8), 1: weights(4, seed=2)}, RAGGED)
    torch.testing.assert_close(replaced, expected)
    site.clear(1)
    cleared = torch.zeros(4, sum(RAGGED))
    site.apply(cleared, x, Plan(slots))
    assert not cleared[1::2].any()
    assert cleared[0::2].any()
    site.set(1, weights(8, seed=1))
    again = torch.zeros(4, sum(RAGGED))
    site.apply(again, x, Plan(slots))
    assert again[1::2].any()


def test_the_same_call_gives_the_same_bits() -> None:
    slots = mix("zipf", 33, 6)
    site = site_of({slot: weights(rank, seed=slot) for slot, rank in enumerate((1, 4, 8, 16, 17, 64))})
    x = torch.randn(33, IN)
    first = torch.zeros(33, sum(RAGGED))
    site.apply(first, x, Plan(slots))
    for _ in range(20):
        again = torch.zeros(33, sum(RAGGED))
        site.apply(again, x, Plan(slots))
        assert torch.equal(first, again)


def test_arguments_are_refused_by_name_before_anything_is_written() -> None:
    site, plan = site_of({0: weights(8)}), Plan([0, 0])
    y = torch.zeros(2, sum(RAGGED))
    for x, out, argument in [
        (torch.randn(2, IN + 1), y, "x"),
        (torch.randn(3, IN), y, "x"),
        (torch.randn(2, IN), torch.zeros(2, 5), "y"),
        (torch.randn(2, IN).double(), y, "x"),
        (torch.randn(2, IN), y.double(), "y"),
    ]:
        with pytest.raises(SgmvArgumentError) as refused:
            site.apply(out, x, plan)
        assert refused.value.argument == argument
    assert not y.any()
    with pytest.raises(SgmvArgumentError, match="slots"):
        Plan([0, 1.5])  # type: ignore[list-item]
    with pytest.raises(SgmvArgumentError, match="device"):
        make_site(IN, RAGGED, device="meta")
    with pytest.raises(SgmvArgumentError, match="slices"):
        make_site(IN, ())


@pytest.mark.parametrize(
    ("bad", "argument"),
    [
        (weights(8, (40, 13)), "weights.a"),
        (weights(8, (40, 13, 14)), "weights.b[2]"),
        (weights(8, inputs=IN - 1), "weights.a[0]"),
        (SlotWeights((None, None, None), weights(8).b, (1.0, 1.0, 1.0)), "weights.b[0]"),
    ],
)
def test_weights_that_do_not_fit_are_refused_and_leave_the_slot_as_it_was(bad: SlotWeights, argument: str) -> None:
    site, x = site_of({0: weights(8)}), torch.randn(1, IN)
    before, after = torch.zeros(1, sum(RAGGED)), torch.zeros(1, sum(RAGGED))
    site.apply(before, x, Plan([0]))
    with pytest.raises(SgmvArgumentError) as refused:
        site.set(0, bad)
    assert refused.value.argument == argument
    site.apply(after, x, Plan([0]))
    assert torch.equal(before, after)


def test_backends_register_by_device_type() -> None:
    assert "cpu" in backends()
    register_backend("meta", lambda inputs, slices, device, dtype, storage: make_site(inputs, slices, dtype=dtype))
    try:
        assert make_site(IN, RAGGED, device="meta").slices == RAGGED
    finally:
        from sgmv import ops

        del ops._BACKENDS["meta"]
