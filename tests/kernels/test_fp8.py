"""Adapters held as fp8: what rounding costs, what it saves, and that the kernels compute exactly what is held."""

from __future__ import annotations

import math

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from sgmv import FP8, Plan, SgmvArgumentError, SlotWeights, Storage, make_site, sgmv_naive
from sgmv.operands import Operands
from sgmv.torch_site import TorchSite
from sgmv.triton_kernels import as_kind
from sgmv.triton_site import TritonSite

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SLICES = (40, 13, 13)
IN = 300
RANKS = {0: (8, 8, 8), 1: (17, 0, 3), 2: (64, 1, 16), 5: (4, 4, 4)}
SLOTS = [0, 1, -1, 2, 5, 0, 3, 2, 1, 1]
ROUNDING = 0.06
"""Of the delta's length, with signed normal matrices. 0.037 was measured for 4,096 inputs and outputs at ranks 8 to 64,
where bfloat16 costs 0.0024; fewer of them average less of it away.
"""
# Of the largest number, against the matrices that are held: what rounding h and y to the type costs.
TOLERANCE = {torch.float32: 2e-6, torch.float16: 3e-3, torch.bfloat16: 2e-2}
everywhere = pytest.mark.parametrize("dtype", TOLERANCE, ids=lambda dtype: str(dtype).removeprefix("torch."))


def weights(slot: int, size: float = 1.0) -> SlotWeights:
    generator = torch.Generator().manual_seed(slot)

    def matrix(rows: int, columns: int) -> Tensor | None:
        if not rows or not columns:
            return None
        return size * torch.randn(rows, columns, generator=generator) / math.sqrt(columns)

    ranks = RANKS[slot]
    return SlotWeights(
        tuple(matrix(rank, IN) for rank in ranks),
        tuple(matrix(out, rank) for out, rank in zip(SLICES, ranks, strict=True)),
        (1.5, 2.5, 0.5),
    )


def held(own: SlotWeights) -> SlotWeights:
    """What is left of the matrices, in float64."""
    kept = Operands(own, device=torch.device("cpu"), dtype=FP8)
    b = [
        None if b is None or factors is None else (b.double() * factors.double()[:, None]).t()
        for b, factors in zip(kept.b, kept.factors, strict=True)
    ]
    return SlotWeights(tuple(None if a is None else a.double() for a in kept.a), tuple(b), kept.scaling)


def site(dtype: torch.dtype, kind: type[TorchSite] = TritonSite, size: float = 1.0) -> TorchSite:
    made = kind(IN, SLICES, DEVICE, dtype, Storage(dtype=FP8))
    for slot in RANKS:
        made.set(slot, weights(slot, size))
    return made


def inputs(dtype: torch.dtype) -> Tensor:
    return torch.randn(len(SLOTS), IN, generator=torch.Generator().manual_seed(7)).to(DEVICE, dtype)


def delta(made: TorchSite, x: Tensor) -> Tensor:
    y = torch.zeros(len(SLOTS), sum(SLICES), device=DEVICE, dtype=x.dtype)
    made.apply(y, x, Plan(SLOTS))
    return y.cpu().double()


def naive(x: Tensor, own: dict[int, SlotWeights]) -> Tensor:
    y = torch.zeros(len(SLOTS), sum(SLICES), dtype=torch.float64)
    sgmv_naive(y, x.cpu().double(), SLOTS, own, SLICES)
    return y


@everywhere
@pytest.mark.parametrize("kind", [TritonSite, TorchSite])
@pytest.mark.parametrize("size", [1.0, 1e-3, 20.0])
def test_computes_what_is_held(kind: type[TorchSite], size: float, dtype: torch.dtype) -> None:
    """Small and large matrices too: what stands between the products has to fit float16."""
    x = inputs(dtype)
    expected = naive(x, {slot: held(weights(slot, size)) for slot in RANKS})
    error = (delta(site(dtype, kind, size), x) - expected).abs().max()
    least = torch.finfo(dtype).tiny * torch.finfo(dtype).eps  # a step of the smallest numbers, where y has only those
    assert error <= TOLERANCE[dtype] * expected.abs().max() + least


def test_rounding_costs_what_is_said() -> None:
    x = inputs(torch.float32)
    exact = naive(x, {slot: weights_in_double(slot) for slot in RANKS})
    found = delta(site(torch.float32), x)
    for row, slot in enumerate(SLOTS):
        if slot in RANKS:
            assert 1e-4 < (found[row] - exact[row]).norm() / exact[row].norm() < ROUNDING
        else:
            assert not found[row].any()


def weights_in_double(slot: int) -> SlotWeights:
    own = weights(slot)
    a, b = (tuple(None if m is None else m.double() for m in matrices) for matrices in (own.a, own.b))
    return SlotWeights(a, b, own.scaling)


def test_a_factor_for_each_rank_keeps_what_one_for_all_would_lose() -> None:
    """Rows of A that shrink by a hundred thousand, and B's that grow as much: each adds the same to the delta."""
    own = weights(0)
    sizes = torch.logspace(0, -5, 8)
    uneven = SlotWeights(
        tuple(a * sizes[:, None] for a in own.a if a is not None),
        tuple(b * sizes.flip(0)[None, :] for b in own.b if b is not None),
        own.scaling,
    )
    x = torch.randn(4, IN, generator=torch.Generator().manual_seed(1)).double()
    results = []
    for matrices in (uneven, held(uneven)):
        y = torch.zeros(4, sum(SLICES), dtype=torch.float64)
        a, b = (tuple(None if m is None else m.double() for m in pair) for pair in (matrices.a, matrices.b))
        sgmv_naive(y, x, [0] * 4, {0: SlotWeights(a, b, matrices.scaling)}, SLICES)
        results.append(y)
    assert (results[1] - results[0]).norm() / results[0].norm() < ROUNDING


def test_half_the_bytes() -> None:
    whole, less = (TritonSite(IN, (4096,), DEVICE, torch.bfloat16, Storage(dtype=kind)) for kind in (None, FP8))
    own = SlotWeights((torch.ones(16, IN),), (torch.ones(4096, 16),), (1.0,))
    for made in (whole, less):
        made.set(0, own)
    assert less.num_bytes == whole.num_bytes // 2 + 16 * 4


def test_a_matrix_of_zeros_adds_exactly_nothing() -> None:
    made = TritonSite(IN, SLICES, DEVICE, torch.bfloat16, Storage(dtype=FP8))
    own = weights(0)
    made.set(0, SlotWeights(own.a, tuple(torch.zeros_like(b) for b in own.b if b is not None), own.scaling))
    assert not delta(made, inputs(torch.bfloat16)).any()
    made.set(0, SlotWeights(tuple(torch.zeros_like(a) for a in own.a if a is not None), own.b, own.scaling))
    assert not delta(made, inputs(torch.bfloat16)).any()


@pytest.mark.filterwarnings("ignore:invalid value", "ignore:overflow")  # numpy's, in the interpreter
@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_a_poisoned_adapter_reaches_its_own_rows_alone(poison: float) -> None:
    made, x = site(torch.bfloat16), inputs(torch.bfloat16)
    clean = delta(made, x)
    own = weights(1)
    for matrix in (*own.a, *own.b):
        if matrix is not None:
            matrix.fill_(poison)
    made.set(1, own)
    dirty = delta(made, x)
    for row, slot in enumerate(SLOTS):
        assert torch.equal(dirty[row], clean[row]) or (slot == 1 and dirty[row].isnan().any())


@triton.jit
def _read(out, stored, FP8_AS: tl.constexpr):  # type: ignore[no-untyped-def]
    place = tl.arange(0, 256)
    tl.store(out + place, as_kind(tl.load(stored + place), out.dtype.element_ty, FP8_AS))


@everywhere
@pytest.mark.parametrize("reading", ["native", "halves", "bits"])
def test_every_way_of_reading_gives_every_number_exactly(reading: str, dtype: torch.dtype) -> None:
    codes = torch.arange(256, dtype=torch.uint8)
    expected = codes.view(FP8).to(dtype)
    real = expected.isfinite()
    assert real.sum() == 254
    found = torch.zeros(256, dtype=dtype, device=DEVICE)
    _read[1,](found, codes.to(DEVICE), FP8_AS=reading)
    assert torch.equal(found.cpu()[real], expected[real])


def test_who_holds_fp8_and_who_does_not() -> None:
    assert type(make_site(IN, SLICES, storage=Storage(dtype=FP8))) is TorchSite
    with pytest.raises(SgmvArgumentError) as refused:
        Storage(dtype=torch.float8_e5m2)
    assert refused.value.argument == "storage.dtype"
