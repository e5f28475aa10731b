"""The greatest of many numbers, against numpy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from cpujit import Kernel, float32s, int64s, run
from cpujit.greatest import greatest


def _find(arguments: Any) -> None:
    given = int64s(arguments, (3,))
    float32s(given[2], (1,))[0] = greatest(given[0], given[1])


FIND = Kernel(_find)


def found(numbers: list[float]) -> float:
    x, result = np.array(numbers, np.float32), np.zeros(1, np.float32)
    run(FIND.address, np.array([x.ctypes.data, len(x), result.ctypes.data], np.int64).ctypes.data, 1)
    return float(result[0])


@pytest.mark.parametrize("count", [1, 2, 15, 16, 17, 1000])
@pytest.mark.parametrize("shift", [-10, 0, 10])
def test_any_count_and_sign(count: int, shift: float) -> None:
    x = np.random.default_rng(count).normal(shift, 3, count).astype(np.float32)
    assert found(x.tolist()) == x.max()


def test_ends() -> None:
    inf, tiny = math.inf, 1e-45
    assert found([-inf, -inf]) == -inf
    assert found([-inf, -1e38]) == np.float32(-1e38)
    assert found([3.0, inf, -inf]) == inf
    assert found([-1.0, -tiny]) == np.float32(-tiny)
    assert found([-0.0, 0.0]) == 0
    assert math.isnan(found([1.0, math.nan, inf]))
