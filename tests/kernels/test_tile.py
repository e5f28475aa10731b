"""Tiles of matrix products against numpy in float64: every size, any strides, nothing outside written or read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cpujit import Kernel, int64s, run
from cpujit.tile import LANES, MOST_ROWS, supported, tile_1, tile_1_ahead, tile_2, tile_2_ahead

pytestmark = pytest.mark.skipif(not supported(), reason="made for AVX-512")


def _all_four(arguments: Any) -> None:
    given = int64s(arguments, (13,))
    x, w, addend = (given[1], given[2]), (given[3], given[4]), (given[5], given[6])
    tile_1(given[0], x, w, given[7], addend, (given[8], given[12]), 0)
    tile_2(given[0], x, w, given[7], addend, (given[9], given[12]), 0)
    tile_2_ahead(given[0], x, w, given[7], addend, (given[10], given[12]), 0)
    tile_1_ahead(given[0], x, w, given[7], addend, (given[11], given[12]), (0, given[1]))


ALL_FOUR = Kernel(_all_four)


@pytest.mark.parametrize("depth", [1, 2, 37, 576])
@pytest.mark.parametrize("rows", range(1, MOST_ROWS + 1))
def test_tiles_of_every_size(rows: int, depth: int) -> None:
    generator = np.random.default_rng(rows * 1000 + depth)
    # operands with room around them, filled with what would spoil every sum
    x, w = np.full((rows, depth + 3), np.nan, np.float32), np.full((depth, 2 * LANES + 5), np.nan, np.float32)
    x[:, :depth] = generator.standard_normal((rows, depth))
    w[:, : 2 * LANES] = generator.standard_normal((depth, 2 * LANES))
    addend = generator.standard_normal((rows, 2 * LANES)).astype(np.float32)
    outs = [np.full((rows + 1, 2 * LANES + 7), 5, np.float32) for _ in range(4)]
    given = np.array(
        [rows, x.ctypes.data, x.strides[0], w.ctypes.data, w.strides[0], addend.ctypes.data, addend.strides[0], depth]
        + [out.ctypes.data for out in outs]
        + [outs[0].strides[0]],
        np.int64,
    )
    run(ALL_FOUR.address, given.ctypes.data, 1)
    expected = addend + x[:, :depth].astype(np.float64) @ w[:, : 2 * LANES]
    for out, columns in zip(outs, (LANES, 2 * LANES, 2 * LANES, LANES), strict=True):
        np.testing.assert_allclose(out[:rows, :columns], expected[:, :columns], rtol=1e-5, atol=1e-4)
        assert (out[:rows, columns:] == 5).all()
        assert (out[rows] == 5).all()
    assert (outs[1] == outs[2]).all()
    assert (outs[0][:rows, :LANES] == outs[1][:rows, :LANES]).all(), "a number's bits depend on the tile"
