"""The Triton kernels against ``naive.py`` in float64: the delta is compared, not base + delta."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from sgmv import Plan, SgmvArgumentError, SlotWeights, sgmv_naive
from sgmv.torch_site import TorchSite
from sgmv.triton_site import BM, Shape, TritonSite

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
RAGGED = (40, 13, 13)
IN = 67
RANKS = (1, 4, 8, 16, 17, 64)
# of the largest number: what rounding h and y to the type costs
TOLERANCE = {torch.float32: 2e-6, torch.float16: 3e-3, torch.bfloat16: 2e-2}
everywhere = pytest.mark.parametrize("dtype", TOLERANCE, ids=lambda dtype: str(dtype).removeprefix("torch."))


def weights(
    rank: int | Sequence[int],
    slices: Sequence[int] = RAGGED,
    seed: int = 0,
    inputs: int = IN,
    dtype: torch.dtype = torch.float32,
) -> SlotWeights:
    """Signed, scaled by 1/√K; a rank of 0 leaves its slice out."""
    generator = torch.Generator().manual_seed(seed)
    ranks = [rank] * len(slices) if isinstance(rank, int) else rank

    def matrix(rows: int, columns: int) -> Tensor | None:
        if not rows or not columns:
            return None
        return (torch.randn(rows, columns, generator=generator) / math.sqrt(columns)).to(dtype)

    return SlotWeights(
        tuple(matrix(r, inputs) for r in ranks),
        tuple(matrix(out, r) for out, r in zip(slices, ranks, strict=True)),
        tuple(1.5 + index for index in range(len(slices))),
    )


def site_of(
    adapters: dict[int, SlotWeights],
    slices: Sequence[int] = RAGGED,
    inputs: int = IN,
    dtype: torch.dtype = torch.float32,
) -> TritonSite:
    site = TritonSite(inputs, slices, DEVICE, dtype)
    for slot, own in adapters.items():
        site.set(slot, own)
    return site


def inputs(rows: int, width: int = IN, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(7)).to(DEVICE, dtype)


def double(own: SlotWeights) -> SlotWeights:
    def up(matrices: Iterable[Tensor | None]) -> tuple[Tensor | None, ...]:
        return tuple(None if matrix is None else matrix.double() for matrix in matrices)

    return SlotWeights(up(own.a), up(own.b), own.scaling)


def delta(site: TritonSite, x: Tensor, slots: Sequence[int]) -> Tensor:
    y = torch.zeros(len(slots), site.width, device=DEVICE, dtype=x.dtype)
    site.apply(y, x, Plan(slots))
    return y.cpu()


def check(
    adapters: dict[int, SlotWeights],
    slots: list[int],
    slices: Sequence[int] = RAGGED,
    width: int = IN,
    dtype: torch.dtype = torch.float32,
) -> None:
    x = inputs(len(slots), width, dtype)
    found = delta(site_of(adapters, slices, width, dtype), x, slots).double()
    expected = torch.zeros(len(slots), sum(slices), dtype=torch.float64)
    sgmv_naive(expected, x.cpu().double(), slots, {slot: double(own) for slot, own in adapters.items()}, slices)
    error = (found - expected).abs().max().item() if slots else 0.0
    assert error <= TOLERANCE[dtype] * max(1.0, expected.abs().max().item() if slots else 0.0)
    for row, slot in enumerate(slots):
        assert (slot in adapters) == bool(found[row].any()), f"row {row} of slot {slot}"


def mix(kind: str, rows: int, count: int = len(RANKS)) -> list[int]:
    chooser = random.Random(rows)
    return {
        "distinct": [row % count for row in range(rows)],
        "uniform": [chooser.randrange(-1, count) for _ in range(rows)],
        "zipf": chooser.choices(range(count), [1 / (slot + 1) for slot in range(count)], k=rows),
        "identical": [0] * rows,
        "skewed": [1] + [0] * (rows - 1),
    }[kind]


@pytest.mark.parametrize("kind", ["distinct", "uniform", "zipf", "identical", "skewed"])
@pytest.mark.parametrize("rows", [1, 2, 16, 17, 33, 133])
def test_equals_the_specification_for_every_mix_of_adapters(kind: str, rows: int) -> None:
    check({slot: weights(rank, seed=slot) for slot, rank in enumerate(RANKS)}, mix(kind, rows))


@everywhere
@pytest.mark.parametrize("rows", [1, 17, 64])
def test_equals_the_specification_in_every_type(rows: int, dtype: torch.dtype) -> None:
    adapters = {slot: weights(rank, seed=slot, dtype=dtype) for slot, rank in enumerate(RANKS)}
    check(adapters, mix("zipf", rows), dtype=dtype)


@everywhere
@pytest.mark.parametrize("width", [1, 16, 576, 2049, 4097])
def test_inputs_of_any_width(width: int, dtype: torch.dtype) -> None:
    adapters = {0: weights(8, inputs=width, dtype=dtype), 1: weights(17, inputs=width, seed=1, dtype=dtype)}
    check(adapters, [0, 1, 1, -1], width=width, dtype=dtype)


@pytest.mark.parametrize("slices", [(1,), (128,), (129,), (300, 7, 130), (16, 16), (4097,)])
def test_slices_of_any_width(slices: tuple[int, ...]) -> None:
    check({0: weights(4, slices), 3: weights(9, slices, 1)}, [0, 3, -1, 3, 0], slices)


def test_a_head_as_wide_as_a_vocabulary_and_inputs_in_many_parts() -> None:
    check({0: weights(8, (3000,), inputs=9728), 2: weights(17, (3000,), 1, 9728)}, [0, 2, -1, 2], (3000,), 9728)


def test_ranks_from_1_to_256_in_one_batch() -> None:
    ranks = (1, 4, 8, 16, 17, 64, 256)
    check({slot: weights(rank, seed=slot) for slot, rank in enumerate(ranks)}, mix("uniform", 33, len(ranks)))


def test_thousands_of_rows() -> None:
    adapters = {slot: weights(rank, (16,), slot, 16) for slot, rank in enumerate((1, 3, 16))}
    check(adapters, mix("zipf", 2053, 3), (16,), 16)


def test_each_slot_has_its_own_scaling() -> None:
    own = weights(8)
    site = site_of({slot: SlotWeights(own.a, own.b, (scaling,) * 3) for slot, scaling in enumerate((1.0, 2.0, -4.0))})
    found = delta(site, inputs(1).expand(3, IN).contiguous(), [0, 1, 2])
    assert torch.equal(found[1], 2 * found[0])
    assert torch.equal(found[2], -4 * found[0])


def test_a_slot_whose_adapter_leaves_the_site_alone() -> None:
    none = SlotWeights((None,) * 3, (None,) * 3, (0.0,) * 3)
    check({0: weights(8)}, [0, 1, 0])
    site = site_of({0: weights(8), 1: weights(4)})
    site.set(1, none)
    assert not delta(site, inputs(2), [1, 1]).any()


@pytest.mark.parametrize("ranks", [(8, 0, 8), (0, 4, 0), (17, 3, 1), (256, 1, 64)])
def test_slices_may_be_missing_or_differ_in_rank(ranks: tuple[int, ...]) -> None:
    adapters = {0: weights(8, seed=1), 1: weights(ranks, seed=2), 2: weights(3, seed=3)}
    check(adapters, [row % 3 for row in range(20)])


def test_base_rows_and_rows_of_empty_or_unknown_slots_are_not_touched() -> None:
    site = site_of({0: weights(8)})
    y = torch.full((40, sum(RAGGED)), float("nan"), device=DEVICE)
    y[2::4] = 0
    site.apply(y, inputs(40), Plan([-1, 5, 0, 10_000] * 10))
    assert y[2::4].isfinite().all()
    assert y[[row for row in range(40) if row % 4 != 2]].isnan().all()


@pytest.mark.filterwarnings("ignore:invalid value", "ignore:overflow")  # numpy's, in the interpreter
def test_nothing_of_another_tenants_adapter_reaches_a_row() -> None:
    """Neither NaN and infinity in its matrices nor any change of them moves one bit."""
    slots = [0, 1, 2, 0, -1, 1, 2, 0, 1, 0]
    adapters = {slot: weights(rank, seed=slot) for slot, rank in enumerate((8, 16, 4))}
    clean = delta(site_of(adapters), inputs(10), slots)
    for poison in (float("nan"), float("inf"), 1e30):
        own = weights(16, seed=1)
        for matrix in (*own.a, *own.b):
            assert matrix is not None
            matrix.fill_(poison)
        dirty = delta(site_of({**adapters, 1: own}), inputs(10), slots)
        others = [row for row, slot in enumerate(slots) if slot != 1]
        assert torch.equal(dirty[others], clean[others])


@pytest.mark.filterwarnings("ignore:invalid value")
def test_nan_in_one_row_stays_there() -> None:
    x = inputs(20)
    site, slots = site_of({0: weights(8)}), [0] * 20
    clean = delta(site, x, slots)
    x[3] = float("nan")
    dirty = delta(site, x, slots)
    assert dirty[3].isnan().all()
    others = [row for row in range(20) if row != 3]
    assert torch.equal(dirty[others], clean[others])


@everywhere
def test_a_rows_bits_are_the_same_alone_and_in_any_batch(dtype: torch.dtype) -> None:
    adapters = {slot: weights(rank, (40,), slot, 1100, dtype) for slot, rank in enumerate((8, 17, 64))}
    site, x = site_of(adapters, (40,), 1100, dtype), inputs(133, 1100, dtype)
    slots = mix("uniform", 133, 3)
    whole = delta(site, x, slots)
    for rows in (1, 31, 32, 33, 127, 128, 129):
        assert torch.equal(delta(site, x[:rows].contiguous(), slots[:rows]), whole[:rows]), rows
    # In the interpreter products are BLAS's, whose sums depend on a row's place in its tile; an instruction's do not.
    for row in (0, 40, 132) if DEVICE.type == "cuda" else (0,):
        assert torch.equal(delta(site, x[row : row + 1], slots[row : row + 1])[0], whole[row]), row


@everywhere
def test_the_same_call_gives_the_same_bits(dtype: torch.dtype) -> None:
    adapters = {slot: weights(rank, seed=slot, dtype=dtype) for slot, rank in enumerate(RANKS)}
    site, x, slots = site_of(adapters, dtype=dtype), inputs(17, dtype=dtype), mix("zipf", 17)
    first = delta(site, x, slots)
    # A race shows now and then on a GPU; the interpreter runs one program after the other.
    assert all(torch.equal(delta(site, x, slots), first) for _ in range(20 if DEVICE.type == "cuda" else 1))


def test_memory_that_was_never_written_is_never_read(unwritten_is_nan: None) -> None:
    """Between matrices of odd ranks, behind them, and where shrunk rows stand."""
    assert torch.empty(3).isnan().all()
    check({slot: weights(rank, seed=slot) for slot, rank in enumerate((1, 17, (3, 0, 5)))}, mix("uniform", 40, 3))


def test_rows_beyond_what_32_bits_count() -> None:
    """x and y of which rows lie more than 2³¹ numbers apart; their memory is asked for and never touched."""
    apart, rows = 1 << 31, 2
    size: dict[str, Any] = {"dtype": torch.float16, "device": DEVICE}
    x, y = (torch.empty(apart + 64, **size).as_strided((rows, 16), (apart, 1)) for _ in range(2))
    x.copy_(inputs(rows, 16, torch.float16))
    y.zero_()
    own = weights(4, (16,), inputs=16, dtype=torch.float16)
    site = site_of({0: own}, (16,), 16, torch.float16)
    site.apply(y, x, Plan([0, 0]))
    close = torch.zeros(rows, 16, **size)
    site.apply(close, x.contiguous(), Plan([0, 0]))
    assert close.any()
    assert torch.equal(y, close)


def test_a_slot_that_is_loaded_again_forgets_what_was_there() -> None:
    site, x = site_of({0: weights(17)}), inputs(3)
    site.set(0, weights((4, 0, 0), seed=9))
    assert torch.equal(delta(site, x, [0, 0, 0]), delta(site_of({0: weights((4, 0, 0), seed=9)}), x, [0, 0, 0]))
    site.clear(0)
    assert not delta(site, x, [0, 0, 0]).any()


def test_zero_b_adds_exactly_nothing_and_an_empty_batch_is_one() -> None:
    own = weights(8)
    zero = SlotWeights(own.a, tuple(b.zero_() for b in own.b if b is not None), own.scaling)
    assert not delta(site_of({0: zero}), inputs(5), [0] * 5).any()
    site_of({0: own}).apply(torch.empty(0, sum(RAGGED), device=DEVICE), inputs(0), Plan([]))


def test_x_and_y_may_be_parts_of_wider_tensors() -> None:
    site, wide, slots = site_of({0: weights(8)}), inputs(6, IN + 9), [0, -1, 0, 0, -1, 0]
    y = torch.zeros(6, sum(RAGGED) + 5, device=DEVICE)
    site.apply(y[:, 2:-3], wide[:, 4:-5], Plan(slots))
    assert torch.equal(y[:, 2:-3].cpu(), delta(site, wide[:, 4:-5].contiguous(), slots))
    assert not y[:, :2].any()
    assert not y[:, -3:].any()


@pytest.mark.parametrize(
    ("y", "x", "argument"),
    [
        (torch.zeros(3, 66), torch.zeros(3, IN + 1), "x"),
        (torch.zeros(3, 65), torch.zeros(3, IN), "y"),
        (torch.zeros(2, 66), torch.zeros(3, IN), "y"),
        (torch.zeros(3, 66), torch.zeros(3, IN, dtype=torch.float16), "x"),
        (torch.zeros(66, 3).t(), torch.zeros(3, IN), "y"),
        (torch.zeros(3, 66, device="meta"), torch.zeros(3, IN), "y"),
    ],
)
def test_tensors_that_do_not_fit_are_refused_before_any_launch(y: Tensor, x: Tensor, argument: str) -> None:
    site = site_of({0: weights(8)})
    given = [tensor if tensor.is_meta else tensor.to(DEVICE) for tensor in (y, x)]
    with pytest.raises(SgmvArgumentError) as refused:
        site.apply(given[0], given[1], Plan([0, 0, 0]))
    assert refused.value.argument == argument


def test_what_no_kernel_is_for_is_refused() -> None:
    with pytest.raises(SgmvArgumentError, match="float64"):
        TritonSite(8, (8,), DEVICE, torch.float64)
    with pytest.raises(SgmvArgumentError, match="slot: -1"):
        site_of({}).set(-1, weights(8))


def test_a_tile_holds_one_slot_and_every_row_once() -> None:
    slots = mix("zipf", 133)
    tiles, rows, own_slots = Plan(slots).on(torch.device("cpu"))
    assert own_slots.tolist()[:133] == slots
    seen = []
    for slot, first, count in tiles.tolist():
        assert 0 < count <= BM
        own = rows[first : first + count].tolist()
        assert {slots[row] for row in own} == {slot}
        seen += own
    assert sorted(seen) == list(range(133))


def test_parts_of_the_inputs_depend_on_sizes_alone_and_cover_them() -> None:
    for width in (1, 67, 576, 1024, 4096, 4097, 14336, 28672):
        for dtype in TOLERANCE:
            shape = Shape.of(width, (64,), dtype)
            assert shape.splits * shape.part >= width > (shape.splits - 1) * shape.part
            assert shape.part % shape.bk == 0


def test_agrees_with_torchs_products() -> None:
    adapters = {slot: weights(rank, seed=slot) for slot, rank in enumerate(RANKS)}
    plain = TorchSite(IN, RAGGED, DEVICE, torch.float32)
    for slot, own in adapters.items():
        plain.set(slot, own)
    slots, x = mix("uniform", 40), inputs(40)
    y = torch.zeros(40, sum(RAGGED), device=DEVICE)
    plain.apply(y, x, Plan(slots))
    torch.testing.assert_close(delta(site_of(adapters), x, slots), y.cpu(), atol=1e-5, rtol=1e-5)
