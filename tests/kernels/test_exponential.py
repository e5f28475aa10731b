"""The vectorised exponential against numpy in float64."""

from __future__ import annotations

from typing import Any

import numpy as np

from cpujit import Kernel, float32s, int64s, run
from cpujit.exponential import exp


def _all(arguments: Any) -> None:
    given = int64s(arguments, (3,))
    x, y = float32s(given[1], (given[0],)), float32s(given[2], (given[0],))
    for index in range(len(x)):
        y[index] = exp(x[index])


ALL = Kernel(_all)


def exponentials(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    x = np.ascontiguousarray(x, np.float32)
    y = np.empty_like(x)
    run(ALL.address, np.array([len(x), x.ctypes.data, y.ctypes.data], np.int64).ctypes.data, 1)
    return y


def test_within_two_units_in_the_last_place() -> None:
    x = np.concatenate([np.linspace(-87, 88, 1_000_001), np.random.default_rng(0).normal(0, 1, 100_000)])
    x = x.astype(np.float32)
    expected = np.exp(x.astype(np.float64))
    assert (np.abs(exponentials(x) - expected) <= 2 * np.spacing(expected.astype(np.float32))).all()


def test_ends() -> None:
    found = exponentials(np.array([0.0, -0.0, -1e9, -np.inf, 1e9, np.inf, np.nan]))
    assert (found[:2] == 1).all()
    assert (found[2:4] >= 0).all()
    assert (found[2:4] < 1e-37).all()
    assert np.isfinite(found[4:6]).all()
    assert (found[4:6] > 1e38).all()
    assert np.isnan(found[6])
