"""How a product is cut into programs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

PART = 128
"""K is cut at multiples of it."""
_LEAST_PART = 512
"""Numbers of K that are worth a program of their own. Chosen, not measured."""
_MOST_PARTS = 8


@dataclass(frozen=True, slots=True)
class Tile:
    """What one program computes: ``bt`` rows by ``bn`` outputs, ``bk`` of K at a time.

    :ivar stages: of loads under way, on NVIDIA; AMD's compiler keeps two.
    :ivar enough: programs that keep a device busy. Chosen, not measured: two for each multiprocessor of an H100, or
        half of one where a program does four times as much.
    """

    bt: int
    bn: int
    bk: int
    warps: int
    stages: int
    enough: int

    @staticmethod
    def of(rows: int) -> Tile:
        """For a batch of so many. A row gives the same bits in each: see :mod:`fp8_linear.triton_kernels`."""
        return next((tile for tile in TILES if rows <= tile.bt), TILES[-1])


TILES = (Tile(16, 64, 128, 4, 4, 264), Tile(64, 64, 64, 4, 4, 264), Tile(128, 128, 64, 8, 3, 66))
"""For decoding, for decoding many, for prompts. Weights are read once for all of a tile's rows."""


@dataclass(frozen=True, slots=True)
class Cut:
    """How K is cut, by the weight's sizes alone. :ivar part: numbers of each part but the last."""

    splits: int
    part: int

    @classmethod
    def of(cls, outputs: int, inputs: int) -> Cut:
        wanted = min(-(-TILES[0].enough // -(-outputs // TILES[0].bn)), inputs // _LEAST_PART, _MOST_PARTS)
        part = -(-inputs // (max(1, wanted) * PART)) * PART
        return cls(-(-inputs // part), part)

    def spreads(self, tile: Tile, programs: int) -> bool:
        """Whether each part has a program of its own, where one for all of them would be so many."""
        return self.splits > 1 and programs < tile.enough


def compiler_options(tile: Tile, *, hip: bool) -> dict[str, Any]:
    """AMD has matrix instructions of 16 and of 32 outputs, which add up K in other steps: always the same one."""
    return {"num_stages": 2, "matrix_instr_nonkdim": 16} if hip else {"num_stages": tile.stages}
