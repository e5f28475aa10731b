"""Run as a script: steps through the packages' own launches, compiled for sm_90 as a GPU's driver would have them.

Nothing runs. What a launch is given decides how Triton compiles it: a number that is 1 or divides by 16, an address
that does not divide by 16. Prints as JSON how many ways each kernel was compiled so far, after each number of rows.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ.pop("TRITON_INTERPRET", None)
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "kernels"))

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from fp8_linear import Fp8Weight
from fp8_linear import triton_kernels as linear_kernels
from fp8_linear.triton_product import multiplied
from paged_attention import FixedTiles, Sequence, Tiles
from paged_attention import triton_kernels as attention_kernels
from paged_attention.attention import Shape, paged_attention, write
from sgmv import FP8, EmbeddingWeights, FixedPlan, GainRows, Plan, SlotWeights, StepNumbers, Storage
from sgmv import triton_kernels as sgmv_kernels
from sgmv import triton_pointwise as pointwise
from sgmv.triton_embedding import TritonEmbeddingSite
from sgmv.triton_gain import TritonGain
from sgmv.triton_site import TritonSite

CPU, TYPE = torch.device("cpu"), torch.bfloat16
HIDDEN, SLICES, WIDTH = 512, (256, 128, 128), 512
SHAPE = Shape(8, 2, 64, 16, TYPE)
KERNELS = (
    *(sgmv_kernels.shrink, sgmv_kernels.expand, pointwise.amplify, pointwise.embed),
    *(attention_kernels.attend, attention_kernels.combine, attention_kernels.store),
    *(linear_kernels.multiply, linear_kernels.add_parts),
)


class Driver:
    """What compiling asks of a device."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int | None = None) -> int:
        return 0


def compiled_launch(kernel: Any, grid: Any) -> Any:
    return lambda *given, **options: kernel.warmup(*given, grid=grid, **options)


def zeros(*shape: int) -> torch.Tensor:
    return torch.zeros(*shape, dtype=TYPE)


class Adapters:
    def __init__(self, dtype: torch.dtype | None) -> None:
        storage = Storage(slots=1 if dtype is None else 8, max_rank=16, dtype=dtype)
        self.site = TritonSite(HIDDEN, SLICES, CPU, TYPE, storage)
        self.gain = TritonGain(WIDTH, None, device=CPU, dtype=TYPE, storage=storage)
        self.embedding = TritonEmbeddingSite(100, HIDDEN, device=CPU, dtype=TYPE, storage=storage)
        ones = tuple(torch.ones(16, HIDDEN) for _ in SLICES), tuple(torch.ones(width, 16) for width in SLICES)
        self.site.set(0, SlotWeights(*ones, (1.0,) * len(SLICES)))
        self.gain.set(0, torch.ones(WIDTH))
        self.embedding.set(0, EmbeddingWeights(torch.ones(100, 16), torch.ones(16, HIDDEN)))

    def step(self, rows: int) -> None:
        numbers = StepNumbers((FixedPlan.size(rows),), CPU)
        for plan in (Plan([0] * rows), Plan([-1, 0] * rows), FixedPlan(rows, numbers.parts[0])):
            count = plan.num_rows
            self.embedding.apply(zeros(count, HIDDEN), torch.zeros(count, dtype=torch.int64), plan)
            self.gain.apply(zeros(count, WIDTH), GainRows(plan, self.gain.held, CPU))
            self.gain.apply(zeros(count, WIDTH), GainRows(plan, self.gain.held, CPU), zeros(count, WIDTH))
            self.site.apply(zeros(count, WIDTH), zeros(count, HIDDEN), plan)


def attend(rows: int) -> None:
    """Decoding tokens, and prompts of as many."""
    pools = zeros(200, 16, 2, 64), zeros(200, 16, 2, 64)
    size: dict[str, Any] = {"block_size": 16, "num_blocks": 200}
    decoding = [Sequence(7 * index, 1, list(range(40))) for index in range(rows)]
    fixed = FixedTiles(rows, *StepNumbers((FixedTiles.size(rows), 40 * rows), CPU).parts, **size)
    steps = [([*decoding, Sequence(3, rows + 1, list(range(20)))]), decoding]
    every = [Tiles.of(own, most=SHAPE.most_tokens, device=CPU, **size) for own in steps]
    for tiles in (*every, fixed.tiles):
        k, q = zeros(tiles.num_tokens, 2, 64), zeros(tiles.num_tokens, 8, 64)
        write(k, k, *pools, tiles)
        for window in (None, 1, 100):
            paged_attention(q, *pools, tiles, SHAPE, window=window)


def linears(rows: int, weights: list[Fp8Weight]) -> None:
    """Each tile's sizes, with and without a residual."""
    for weight in weights:
        width, inputs = weight.numbers.shape
        for count in (min(rows, 16), 16 + rows, 64 + rows):
            for residual in (None, zeros(count, width)):
                multiplied(zeros(count, inputs), weight, None, residual)


def main() -> None:
    driver.set_active(Driver())
    JITFunction.__getitem__ = compiled_launch  # type: ignore[assignment]
    adapters = [Adapters(None), Adapters(FP8)]
    # of one K is spread over programs, of the other it is not
    weights = [Fp8Weight(torch.ones(width, inputs)) for width, inputs in ((HIDDEN, 4096), (2 * HIDDEN, HIDDEN))]
    found = []
    for rows in (1, 2, 5, 16, 17, 48):
        for own in adapters:
            own.step(rows)
        attend(rows)
        linears(rows, weights)
        found.append({kernel.__name__: len(kernel.device_caches[0][0]) for kernel in KERNELS})
    print(json.dumps(found))


main()
