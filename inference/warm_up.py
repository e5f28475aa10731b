"""What a GPU compiles, loads or asks memory for when it is first used, used before the first request.

A kernel takes Triton seconds, in which a request would find the worker stuck, and other ranks give up waiting.
"""

from __future__ import annotations

import torch

from inference.core.step import Row, Runner
from inference.models.lora import SUMMED, AdapterSites, AdapterStep
from inference.protocol import SamplingParams
from sgmv import FixedPlan, GainRows, StepNumbers

LENGTHS = (32, 96, 160, 2048)
"""Tokens of steps: between them the tiles of fp8 linears, and a long step's memory."""
_PARAMS = (
    SamplingParams(max_tokens=1, temperature=0.0),
    SamplingParams(max_tokens=1, temperature=1.0),
    SamplingParams(max_tokens=1, temperature=1.0, top_p=0.9, logprobs=1),
)


@torch.inference_mode()
def warm_adapters(sites: AdapterSites, device: torch.device, dtype: torch.dtype) -> None:
    """Every kernel of adapters, on a row without one: nothing has to be loaded, no other rank takes part.

    :param sites: of fixed storage; all layers have kernels in common.
    """
    numbers = StepNumbers([FixedPlan.size(1)], device)
    plan = FixedPlan(1, numbers.parts[0])
    (host,) = numbers.begin()
    plan.fill([], host)
    numbers.copy()
    step = AdapterStep(plan, GainRows(plan, (), device))

    def zeros(width: int) -> torch.Tensor:
        return torch.zeros(1, width, dtype=dtype, device=device)

    token = torch.zeros(1, dtype=torch.int64, device=device)
    sites.embedding.apply(zeros(sites.embedding.hidden), token, plan)
    for name, site in {**sites.layers[0], "head": sites.head}.items():
        x, width = zeros(site.lora.in_features), sum(site.lora.slices)
        for residual in (None, zeros(width)) if name in SUMMED else (None,):
            site.apply(zeros(width), x, step, residual)


def warm_steps(runner: Runner, most_rows: int = 64, most_tokens: int = 0) -> None:
    """Steps of each of :data:`LENGTHS`, as far as there is room, chosen from in each way, and of as many single tokens.

    A step may be longer than a sequence: then several share the blocks. Before anything else is computed: what is in
    them is nobody's yet.

    :param most_rows: of a step. So many rows that are drawn from at once take the most memory for their logits.
    :param most_tokens: of a step, where that may be longer than any of the lengths.
    """
    room = min(runner.max_model_len, runner.num_blocks * runner.block_size)
    longest, table = max(1, room - 1), range(-(-room // runner.block_size))

    def rows(*lengths: int, params: SamplingParams) -> list[Row]:
        return [Row([0] * length, 0, table, params=params, prompt=[0] * length) for length in lengths]

    for total in sorted({min(length, most_rows * longest) for length in (*LENGTHS, most_tokens) if length}):
        lengths = [min(longest, total - begin) for begin in range(0, total, longest)]
        for params in _PARAMS:
            runner.launch(rows(*lengths, params=params)).results()
        runner.launch(rows(*lengths, 1, params=_PARAMS[0])).results()
    for count in sorted({1, most_rows}):
        for params in _PARAMS:
            runner.launch(rows(*[1] * count, params=params)).results()
