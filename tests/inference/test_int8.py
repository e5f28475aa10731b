"""int8 linears against the same arithmetic in torch; what a row's bits depend on."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from inference.errors import ConfigError
from inference.models.int8 import Int8Linear, quantise_weight

pytestmark = pytest.mark.skipif(not Int8Linear.available(), reason="no AVX-512 VNNI")


def specification(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The product in float64; 127 / top is rounded to float32 as there, so that the same numbers are half way."""
    numbers, w_scale = quantise_weight(weight)
    y = torch.zeros(len(x), len(weight), dtype=torch.float64)
    for first in range(0, x.shape[1], 64):
        span = x[:, first : first + 64]
        top = span.abs().amax(1, keepdim=True)
        inverse = torch.full_like(top, 127).div_(top)  # torch would make 127 / top a product with a reciprocal
        rounded = torch.where(top > 0, span.double() * inverse.double(), 0).round()
        y += rounded @ numbers[:, first : first + 64].double().T * (top / 127).double()
    y *= w_scale.double()
    return y if bias is None else y + bias.double()


def random(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(0, 30) | st.sampled_from([191, 192, 193, 400]),
    inputs=st.integers(1, 200),
    outputs=st.integers(1, 140),
    biased=st.booleans(),
    gap=st.sampled_from([0, 5]),
    seed=st.integers(0, 2**20),
)
def test_equals_the_same_arithmetic_in_torch(
    rows: int, inputs: int, outputs: int, biased: bool, gap: int, seed: int
) -> None:
    weight, bias = random(seed, outputs, inputs), random(seed + 1, outputs) if biased else None
    x = random(seed + 2, rows, inputs + gap)[:, :inputs]
    residual = random(seed + 3, rows, outputs + gap)[:, :outputs]
    linear = Int8Linear(weight, bias)
    expected = specification(x, weight, bias)
    for y, exact in ((linear(x), expected), (linear.add(x, residual), expected + residual)):
        assert y.shape == exact.shape
        assert y.is_contiguous()
        torch.testing.assert_close(y.double(), exact.double(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("inputs", [576, 1536])
def test_close_to_the_exact_product(inputs: int) -> None:
    weight, x = random(1, 96, inputs), random(2, 64, inputs)
    exact = x @ weight.T
    assert (Int8Linear(weight, None)(x) - exact).norm() / exact.norm() < 0.015


def test_a_rows_bits_are_the_same_in_any_batch_and_on_any_number_of_threads() -> None:
    weight, rows = random(1, 100, 61), random(2, 5, 61)
    linear, before = Int8Linear(weight, None), torch.get_num_threads()
    alone = torch.cat([linear(row[None]) for row in rows])
    try:
        for count in (2, 7, 12, 13, 16, 25, 191, 200, 500):
            torch.set_num_threads(1 + count % 3)
            x = 100 * random(count, count, 61)
            places = torch.randperm(count, generator=torch.Generator().manual_seed(count))[: len(rows)]
            x[places] = rows[: len(places)]
            assert torch.equal(linear(x)[places], alone[: len(places)]), count
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), -float("inf")])
def test_a_row_that_is_not_finite_spoils_itself_alone(poison: float) -> None:
    linear, x = Int8Linear(random(1, 64, 32), None), random(2, 20, 32)
    clean = linear(x)
    x[3, 7] = poison
    dirty = linear(x)
    assert not dirty[3].isfinite().any()
    assert torch.equal(torch.cat([dirty[:3], dirty[4:]]), torch.cat([clean[:3], clean[4:]]))


def test_rows_and_weights_of_zeros_and_of_extreme_sizes() -> None:
    weight = random(1, 64, 32)
    weight[5] = 0
    weight[6] = 1e-38
    weight[7] = 1e30
    x = random(2, 4, 32)
    x[1] = 0
    x[2] = 1e-38
    x[3] *= 1e30
    y = Int8Linear(weight, None)(x)
    assert not y[1].any()
    assert not y[:, 5].any()
    assert y[0].isfinite().all()
    assert y[3, :5].isfinite().all()
    assert (y[2, :5].abs() < 1e-30).all()


def test_weights_that_are_not_finite_are_refused() -> None:
    weight = random(1, 8, 8)
    weight[2, 2] = float("nan")
    with pytest.raises(ConfigError, match="not finite"):
        Int8Linear(weight, None)


def test_the_weights_given_may_change_afterwards() -> None:
    weight, x = random(1, 64, 32), random(2, 4, 32)
    linear = Int8Linear(weight, None)
    before = linear(x)
    weight.fill_(float("nan"))
    assert torch.equal(linear(x), before)
