"""What both tiled linears refuse, and what they leave alone: they read and write by address."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from cpujit import places
from inference.models import tiled
from inference.models.int8 import Int8Linear
from inference.models.panels import PanelLinear

LINEARS = [
    pytest.param(kind, marks=pytest.mark.skipif(not kind.available(), reason="not made for this CPU"), id=kind.__name__)
    for kind in (PanelLinear, Int8Linear)
]

pytestmark = pytest.mark.parametrize("kind", LINEARS)
Kind = Callable[[Tensor, Tensor | None], Any]

WRONG: list[tuple[Callable[[int], Tensor], str]] = [
    (lambda width: torch.randn(3, width - 1), "shape"),
    (lambda width: torch.randn(3, width + 1), "shape"),
    (torch.randn, "shape"),
    (lambda width: torch.randn(1, 3, width), "shape"),
    (lambda width: torch.randn(3, width, dtype=torch.float64), "float64"),
    (lambda width: torch.randn(3, width).to(torch.bfloat16), "bfloat16"),
    (lambda width: torch.randn(3, width, device="meta"), "meta"),
    (lambda width: torch.randn(width, 3).t(), "contiguous"),
    (lambda width: torch.randn(3, 2 * width)[:, ::2], "contiguous"),
]


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("make", "message"), WRONG)
def test_other_tensors_are_refused(kind: Kind, make: Callable[[int], Tensor], message: str, biased: bool) -> None:
    linear = kind(torch.randn(40, 24), torch.randn(40) if biased else None)
    with pytest.raises(ValueError, match=f"^x: .*{message}"):
        linear(make(24))
    with pytest.raises(ValueError, match=f"^x: .*{message}"):
        linear.add(make(24), torch.randn(3, 40) if make(24).shape[0] == 3 else torch.randn(make(24).shape[0], 40))
    with pytest.raises(ValueError, match=f"^residual: .*{message}"):
        linear.add(torch.randn(3, 24), make(40))
    with pytest.raises(ValueError, match="residual: 1 rows, x has 3"):
        linear.add(torch.randn(3, 24), torch.randn(1, 40))


def test_a_row_whose_only_column_lies_apart(kind: Kind) -> None:
    linear, wide = kind(torch.randn(1, 1), None), torch.randn(5, 3)
    assert torch.equal(linear.add(wide[:, 1:2], wide[:, 2:]), linear.add(wide[:, 1:2].clone(), wide[:, 2:].clone()))


@pytest.mark.parametrize("outputs", [1, 31, 33, 70])
def test_a_narrow_tile_adds_zeros_of_its_own(kind: Kind, outputs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole tile at the right edge, however few of its columns exist, has its zeros."""
    monkeypatch.setattr(tiled, "_shared_zeros", torch.zeros(0))
    linear = kind(torch.randn(outputs, 24), None)
    assert len(linear._zeros) % tiled.COLUMNS == 0
    assert len(linear._zeros) >= outputs


def test_without_memory_nothing_has_begun(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    linear = kind(torch.randn(40, 24), None)

    def none_left(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("cpujit.places._kept.memory", places._Memory(0))
    with monkeypatch.context() as patch:
        patch.setattr("cpujit.places.np.empty", none_left)
        with pytest.raises(MemoryError):
            linear(torch.randn(3, 24))
    assert linear(torch.ones(3, 24)).isfinite().all()
