"""Linears as panels, against torch in float64."""

from __future__ import annotations

import pytest
import torch

from inference.models.panels import PanelLinear

pytestmark = [
    pytest.mark.skipif(not PanelLinear.available(), reason="made for AVX-512"),
    pytest.mark.usefixtures("threads"),
]

SHAPES = [(32, 1), (960, 576), (576, 1536), (100, 37), (31, 8), (1, 5), (65, 64)]


@pytest.mark.parametrize("rows", [1, 2, 11, 12, 13, 16, 25, 191, 193, 400])
@pytest.mark.parametrize(("out", "inputs"), SHAPES)
def test_products_bias_and_residual(out: int, inputs: int, rows: int) -> None:
    torch.manual_seed(rows)
    weight, bias = torch.randn(out, inputs), torch.randn(out)
    x, residual = torch.randn(rows, inputs), torch.randn(rows, out)
    product = x.double() @ weight.double().t()
    plain, biased = PanelLinear(weight, None), PanelLinear(weight, bias)
    kept = residual.clone()
    for found, expected in (
        (plain(x), product),
        (biased(x), product + bias),
        (plain.add(x, residual), product + residual),
        (biased.add(x, residual), product + residual + bias),
    ):
        assert found.is_contiguous()
        torch.testing.assert_close(found.double(), expected, atol=2e-6 * inputs, rtol=1e-5)
    assert torch.equal(residual, kept)


def test_rows_that_lie_apart() -> None:
    torch.manual_seed(0)
    weight, wide = torch.randn(40, 24), torch.randn(7, 50)
    linear = PanelLinear(weight, None)
    assert torch.equal(linear(wide[:, :24]), linear(wide[:, :24].contiguous()))
    assert torch.equal(linear.add(wide[:, :24], wide[:, 10:]), linear.add(wide[:, :24], wide[:, 10:].contiguous()))


def test_a_rows_bits_depend_on_that_row_alone() -> None:
    torch.manual_seed(0)
    linear = PanelLinear(torch.randn(100, 48), None)
    x = torch.randn(300, 48)
    whole = linear(x)
    poisoned = torch.full_like(x, float("nan"))
    for start, stop in ((0, 1), (7, 20), (100, 300), (299, 300)):
        assert torch.equal(linear(x[start:stop].contiguous()), whole[start:stop])
        poisoned[start:stop] = x[start:stop]
        assert torch.equal(linear(poisoned)[start:stop], whole[start:stop])
        poisoned.fill_(float("nan"))


def test_threads_change_nothing() -> None:
    linear, x = PanelLinear(torch.randn(200, 48), None), torch.randn(500, 48)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = linear(x)
        torch.set_num_threads(3)
        assert all(torch.equal(linear(x), alone) for _ in range(20))
    finally:
        torch.set_num_threads(threads)


def test_no_rows() -> None:
    assert PanelLinear(torch.randn(8, 4), None)(torch.randn(0, 4)).shape == (0, 8)


@pytest.mark.parametrize("width", [32, 40, 97])
def test_rows_are_the_weights_own(width: int) -> None:
    weight = torch.randn(width, 24)
    ids = torch.tensor([width - 1, 0, 31, 31, width // 2])
    rows = PanelLinear(weight, None).rows(ids)
    assert torch.equal(rows, weight[ids])
    assert rows.is_contiguous()
    rows.zero_()
    assert torch.equal(PanelLinear(weight, None).rows(ids), weight[ids])
