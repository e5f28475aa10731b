"""The kernels of :mod:`fp8_linear.triton_kernels` on tensors."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from fp8_linear.errors import LinearArgumentError
from fp8_linear.tiles import PART, Cut, Tile, compiler_options
from fp8_linear.triton_kernels import add_parts, multiply
from fp8_linear.weight import Fp8Weight
from sgmv.triton_site import INTERPRETED, fp8_reading

DTYPES = (torch.bfloat16, torch.float16)
ADD_BN = 1024
"""Columns of one program of add_parts."""


def multiplied(x: Tensor, weight: Fp8Weight, bias: Tensor | None, residual: Tensor | None) -> Tensor:
    """:func:`fp8_linear.product` of checked arguments. A row's bits are the same alone and in any batch."""
    if x.dtype not in DTYPES:
        raise LinearArgumentError("x", f"{x.dtype}; there are kernels for {', '.join(map(str, DTYPES))}")
    y = torch.empty(len(x), len(weight.numbers), dtype=x.dtype, device=x.device)
    if len(x):
        _launch(y, x, weight, bias, residual)
    return y


def _launch(y: Tensor, x: Tensor, weight: Fp8Weight, bias: Tensor | None, residual: Tensor | None) -> None:
    outputs, inputs = weight.numbers.shape
    rows, cut, tile = len(x), Cut.of(outputs, inputs), Tile.of(len(x))
    grid = (triton.cdiv(rows, tile.bt), triton.cdiv(outputs, tile.bn))
    spread = cut.spreads(tile, grid[0] * grid[1])
    parts = torch.empty(cut.splits, rows, outputs, device=x.device, dtype=torch.float32) if spread else y
    end = (weight.scales, y if bias is None else bias, y if residual is None else residual)
    end_stride = 0 if residual is None else residual.stride(0)
    kinds = {"BIASED": bias is not None, "ADDED": residual is not None}
    of_parts = {"BIASED": False, "ADDED": False}  # so that there is one to compile
    multiply[*grid, cut.splits if spread else 1](
        *(y, parts, x, x.stride(0), weight.bytes, weight.stride, *end, end_stride),
        *(rows, outputs, inputs, cut.splits, cut.part),
        EVEN=inputs % PART == 0,
        SPREAD=spread,
        FP8=fp8_reading(x.device),
        BT=tile.bt,
        BN=tile.bn,
        BK=tile.bk,
        WIDE=INTERPRETED,
        **(of_parts if spread else kinds),
        num_warps=tile.warps,
        enable_fp_fusion=False,
        **compiler_options(tile, hip=torch.version.hip is not None),
    )
    if spread:
        block = min(ADD_BN, triton.next_power_of_2(outputs))
        add_parts[rows, triton.cdiv(outputs, block)](
            y, parts, *end, end_stride, rows, outputs, cut.splits, BN=block, **kinds, enable_fp_fusion=False
        )
