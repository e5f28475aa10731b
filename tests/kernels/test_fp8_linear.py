"""Linears of fp8 against their specification in float64, and that a row's bits are its own."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from fp8_linear import FP8, Fp8Weight, LinearArgumentError, linear_naive, ops, product, triton_product
from fp8_linear.tiles import PART, TILES, Cut, Tile

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
# Of the largest number: what rounding y to the type costs. The interpreter cuts bfloat16's last bits off.
TOLERANCE = {torch.float16: 6e-4, torch.bfloat16: 8e-3}
everywhere = pytest.mark.parametrize("dtype", TOLERANCE, ids=lambda dtype: str(dtype).removeprefix("torch."))
SIZES = ((96, 576), (513, 131), (70, 4097), (128, 2048))
"""Outputs and inputs. K of 4,097 is cut into seven parts, of 2,048 into four."""
ROUNDING = 0.03
"""Of a product's length, with normal weights: 0.026 was measured with 4,096 inputs."""


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a GPU gets, on the CPU."""
    monkeypatch.setitem(ops._BACKENDS, "cpu", triton_product.multiplied)


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def weight_of(outputs: int, inputs: int) -> Fp8Weight:
    return Fp8Weight((normal(1, outputs, inputs) / math.sqrt(inputs)).to(DEVICE))


def expected_of(x: Tensor, weight: Fp8Weight, bias: Tensor | None = None, residual: Tensor | None = None) -> Tensor:
    given = (None if each is None else each.cpu().double() for each in (bias, residual))
    return linear_naive(x.cpu().double(), weight.numbers.cpu(), weight.scales.cpu(), *given)


def close(found: Tensor, expected: Tensor) -> bool:
    error = (found.cpu().double() - expected).abs().max()
    return bool(error <= TOLERANCE[found.dtype] * expected.abs().max())


@everywhere
@pytest.mark.parametrize("rows", [1, 15, 64, 133])
@pytest.mark.parametrize(("outputs", "inputs"), SIZES)
@pytest.mark.usefixtures("kernels", "unwritten_is_nan")
def test_equals_the_specification(outputs: int, inputs: int, rows: int, dtype: torch.dtype) -> None:
    weight = weight_of(outputs, inputs)
    x = normal(2, rows, inputs).to(DEVICE, dtype)
    bias, residual = normal(3, outputs).to(DEVICE, dtype), normal(4, rows, outputs).to(DEVICE, dtype)
    for given in ((None, None), (bias, residual)):
        assert close(product(x, weight, *given), expected_of(x, weight, *given))


@pytest.mark.usefixtures("kernels", "unwritten_is_nan")
def test_bias_and_residual_come_in_alone_as_well() -> None:
    weight, x = weight_of(70, 4097), normal(2, 3, 4097).to(DEVICE, torch.float16)
    bias, residual = normal(3, 70).to(DEVICE, x.dtype), normal(4, 3, 70).to(DEVICE, x.dtype)
    for given in ((bias, None), (None, residual)):
        assert close(product(x, weight, *given), expected_of(x, weight, *given))


@pytest.mark.usefixtures("kernels", "unwritten_is_nan")
def test_rows_may_lie_apart_and_there_may_be_none() -> None:
    weight = weight_of(96, 576)
    x, residual = (normal(seed, 20, 700).to(DEVICE, torch.float16) for seed in (1, 2))
    found = product(x[::2, 3:579], weight, residual=residual[::2, 5:101])
    assert close(found, expected_of(x[::2, 3:579], weight, residual=residual[::2, 5:101]))
    assert product(x[:0, :576], weight).shape == (0, 96)


@everywhere
@pytest.mark.parametrize(("outputs", "inputs"), [(70, 4097), (96, 576)])
@pytest.mark.usefixtures("kernels")
@pytest.mark.filterwarnings("ignore:invalid value", "ignore:overflow")  # numpy's, in the interpreter
def test_a_row_has_the_same_bits_alone_and_in_every_batch(outputs: int, inputs: int, dtype: torch.dtype) -> None:
    """Whichever the tile; rows beside it hold NaN and infinity."""
    weight, x = weight_of(outputs, inputs), normal(2, 1, inputs).to(DEVICE, dtype)
    bias, residual = normal(3, outputs).to(DEVICE, dtype), normal(4, 1, outputs).to(DEVICE, dtype)
    alone = product(x, weight, bias, residual)
    for rows, place in ((2, 1), (16, 0), (17, 16), (64, 20), (65, 64), (129, 128), (129, 0)):
        batch, added = x.new_full((rows, inputs), math.nan), residual.new_full((rows, outputs), math.inf)
        batch[place], added[place] = x[0], residual[0]
        assert torch.equal(product(batch, weight, bias, added)[place], alone[0]), (rows, place)


@everywhere
@pytest.mark.parametrize("rows", [1, 130])
@pytest.mark.usefixtures("kernels")
def test_one_program_for_all_of_k_gives_the_bits_of_one_for_each_part(
    monkeypatch: pytest.MonkeyPatch, rows: int, dtype: torch.dtype
) -> None:
    weight, x = weight_of(70, 4097), normal(2, rows, 4097).to(DEVICE, dtype)
    bias, residual = normal(3, 70).to(DEVICE, dtype), normal(4, rows, 70).to(DEVICE, dtype)
    launched: list[int] = []
    add_parts = triton_product.add_parts

    class Noted:
        def __getitem__(self, grid: Any) -> Any:
            launched.append(1)
            return add_parts[grid]

    monkeypatch.setattr(triton_product, "add_parts", Noted())
    spread = product(x, weight, bias, residual)
    assert launched == [1]
    monkeypatch.setattr(Cut, "spreads", lambda *_: False)
    assert torch.equal(product(x, weight, bias, residual), spread)
    assert launched == [1]


@pytest.mark.parametrize("outputs", [1, 64, 576, 4096, 6144, 28672, 128256])
@pytest.mark.parametrize("inputs", [1, 127, 576, 2049, 4096, 4097, 14336])
def test_the_parts_are_all_of_k_each_with_something_in_it(outputs: int, inputs: int) -> None:
    cut = Cut.of(outputs, inputs)
    assert 1 <= cut.splits <= 8
    assert cut.part % PART == 0
    assert (cut.splits - 1) * cut.part < inputs <= cut.splits * cut.part


def test_a_few_rows_are_spread_and_a_prompts_are_not() -> None:
    """A layer of Llama-3-8B: o, qkv and gate_up, for 16 rows, 64, 256 and 2,048."""
    found = []
    for outputs in (4096, 6144, 28672):
        for rows in (16, 64, 256, 2048):
            tile = Tile.of(rows)
            programs = -(-rows // tile.bt) * -(-outputs // tile.bn)
            found.append(Cut.of(outputs, 4096).spreads(tile, programs))
    assert found == [True, True, True, False, True, True, False, False, *[False] * 4]


def test_tiles_are_chosen_by_rows_and_take_k_in_turns_that_divide_its_parts() -> None:
    assert [Tile.of(rows).bt for rows in (1, 16, 17, 64, 65, 5000)] == [16, 16, 64, 64, 128, 128]
    assert all(PART % tile.bk == 0 for tile in TILES)


def test_rounding_costs_what_is_said_and_a_scale_is_a_rows_own() -> None:
    whole = normal(1, 64, 4096) / 64
    whole *= torch.logspace(-6, 3, 64)[:, None]  # a scale for all would lose the small rows
    held = Fp8Weight(whole)
    found = held.numbers.double() * held.scales.double()[:, None]
    x = normal(2, 8, 4096).double()
    exact, rounded = x @ whole.double().T, x @ found.T
    costs = (rounded - exact).norm(dim=0) / exact.norm(dim=0)
    assert 0.01 < float(costs.max()) < 2 * ROUNDING
    assert float(costs.mean()) < ROUNDING
    assert torch.equal(Fp8Weight(whole[7:9]).numbers.view(torch.uint8), held.numbers[7:9].view(torch.uint8))


def test_what_is_held() -> None:
    whole = torch.zeros(5000, 20, dtype=torch.bfloat16)
    whole[1], whole[4999, 3], whole[2, 2], whole[3, 0] = 3.0, -1e-30, torch.finfo(torch.bfloat16).max, 1e-40
    held = Fp8Weight(whole)
    assert held.numbers.dtype is FP8
    assert held.numbers.shape == (5000, 20)
    assert held.stride == 32
    assert held.num_bytes == 5000 * (32 + 4)
    assert held.numbers.float().isfinite().all()
    assert not held.bytes[:, 20:].any()
    found = held.numbers.double() * held.scales.double()[:, None]
    torch.testing.assert_close(found[[1, 2, 4999]], whole[[1, 2, 4999]].double(), rtol=1e-6, atol=0)
    assert not found[[0, 4]].any()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_weight_that_is_not_finite_is_refused(bad: float) -> None:
    whole = torch.zeros(4100, 8)
    whole[4099, 7] = bad
    with pytest.raises(LinearArgumentError, match="not finite") as refused:
        Fp8Weight(whole)
    assert refused.value.argument == "weight"
    for shape in ((3,), (0, 4), (2, 3, 4)):
        with pytest.raises(LinearArgumentError, match="a matrix"):
            Fp8Weight(torch.zeros(shape))


HALF = torch.float16
WRONG: dict[str, tuple[str, dict[str, Tensor]]] = {
    "width of x": ("x", {"x": torch.zeros(2, 15, dtype=HALF)}),
    "x of one row": ("x", {"x": torch.zeros(16, dtype=HALF)}),
    "x in float32": ("x", {"x": torch.zeros(2, 16)}),
    "x by columns": ("x", {"x": torch.zeros(16, 2, dtype=HALF).t()}),
    "x elsewhere": ("x", {"x": torch.zeros(2, 16, dtype=HALF, device="meta")}),
    "width of bias": ("bias", {"bias": torch.zeros(7, dtype=HALF)}),
    "type of bias": ("bias", {"bias": torch.zeros(8)}),
    "rows of residual": ("residual", {"residual": torch.zeros(3, 8, dtype=HALF)}),
    "type of residual": ("residual", {"residual": torch.zeros(2, 8, dtype=torch.bfloat16)}),
    "residual by columns": ("residual", {"residual": torch.zeros(8, 2, dtype=HALF).t()}),
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.usefixtures("kernels")
def test_what_does_not_fit_is_refused_by_name(wrong: str) -> None:
    name, given = WRONG[wrong]
    placed = {key: value if value.is_meta else value.to(DEVICE) for key, value in given.items()}
    with pytest.raises(LinearArgumentError) as refused:
        product(**{"x": torch.zeros(2, 16, dtype=HALF, device=DEVICE), "weight": weight_of(8, 16), **placed})
    assert refused.value.argument == name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_without_a_gpu_the_specification_computes(dtype: torch.dtype) -> None:
    weight = Fp8Weight(normal(1, 70, 300) / 17)
    x, bias, residual = normal(2, 5, 300).to(dtype), normal(3, 70).to(dtype), normal(4, 5, 70).to(dtype)
    expected = expected_of(x, weight, bias, residual)
    found = product(x, weight, bias, residual)
    assert found.dtype is dtype
    torch.testing.assert_close(found.double(), expected, rtol=torch.finfo(dtype).eps, atol=1e-5)
