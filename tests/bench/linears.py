"""Base linears held as fp8 beside torch's 16-bit product. It checks, then times; ``--device cpu`` only checks.

    python tests/bench/linears.py [--device cuda|cpu] [--model 8b 70b] [--tokens 1 16 64 …] [--out FILE.csv]

Right: within what rounding y costs of float64, and the first row's bits those that it has alone. Microseconds of a call
from a CUDA graph over weights that the L2 does not hold; the share is of a copy's bandwidth, of the bytes that move.
Exit status 1: fp8 was wrong somewhere; 2: there is no CUDA device.
"""

from __future__ import annotations

import argparse
import csv
import math
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

if __name__ == "__main__" and any(argument in ("cpu", "--device=cpu") for argument in sys.argv[1:]):
    os.environ["TRITON_INTERPRET"] = "1"  # Triton looks when it is imported

import torch
from kernel_adapters import TOLERANCE, error
from kernel_shapes import MODELS, Site
from kernel_timing import COLD, capture, copy_bandwidth, graph_microseconds
from torch import Tensor

from fp8_linear import Fp8Weight, linear_naive
from fp8_linear.triton_product import multiplied

TOKENS = (1, 16, 64, 128, 512, 2048)
DTYPE = torch.bfloat16
FIELDS = ("model", "site", "tokens", "error", "fp8_microseconds", "mm_microseconds", "fp8_share", "mm_share")


def weights_of(site: Site, device: torch.device) -> list[Tensor]:
    """So many that fp8 ones do not fit into the L2 either; one where nothing is timed."""
    cache = torch.cuda.get_device_properties(device).L2_cache_size if device.type == "cuda" else 0
    count = max(1, math.ceil(COLD * cache / (site.inputs * site.width)))
    generator = torch.Generator(device=device).manual_seed(1)
    shape = (site.width, site.inputs)
    return [
        torch.randn(shape, generator=generator, device=device, dtype=DTYPE).div_(math.sqrt(site.inputs))
        for _ in range(count)
    ]


def wrong_by(x: Tensor, weight: Fp8Weight, residual: Tensor) -> float:
    """Of the largest number; infinite where a row has other bits alone."""
    found = multiplied(x, weight, None, residual)
    alone = multiplied(x[:1], weight, None, residual[:1])
    if not torch.equal(found[0], alone[0]):
        return math.inf
    expected = linear_naive(x.double(), weight.numbers, weight.scales, None, residual.double())
    return error(found, expected)


def microseconds(product: Callable[[Any], object], weights: Sequence[Any]) -> float:
    """Of one call; every weight twice in a graph."""

    def work() -> None:
        for weight in [*weights, *weights]:
            product(weight)

    work()
    return graph_microseconds(capture(work), 2 * len(weights))


def compare(site: Site, tokens: Sequence[int], device: torch.device, bandwidth: float | None) -> list[dict[str, Any]]:
    whole = weights_of(site, device)
    held = [Fp8Weight(weight) for weight in whole]
    rows = []
    for count in tokens:
        generator = torch.Generator(device=device).manual_seed(count)
        x, residual = (
            torch.randn(count, width, generator=generator, device=device, dtype=DTYPE)
            for width in (site.inputs, site.width)
        )
        row: dict[str, Any] = {"model": site.model.name, "site": site.name, "tokens": count}
        row["error"] = wrong_by(x, held[0], residual)
        if bandwidth is not None and row["error"] <= TOLERANCE[DTYPE]:
            moved = 2 * count * (site.inputs + 2 * site.width)
            ways: dict[str, tuple[Callable[[Any], object], list[Any], int]] = {
                "fp8": (lambda weight: multiplied(x, weight, None, residual), held, 1),  # noqa: B023
                "mm": (lambda weight: torch.addmm(residual, x, weight.t()), whole, 2),  # noqa: B023
            }
            for name, (product, weights, size) in ways.items():
                taken = microseconds(product, weights)
                row[f"{name}_microseconds"] = taken
                row[f"{name}_share"] = (moved + size * whole[0].numel()) / (taken / 1e6) / bandwidth
        rows.append(row)
        print(
            "   ".join(f"{key} {value:.3g}" if isinstance(value, float) else str(value) for key, value in row.items())
        )
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="linears.py", description="Check, then time linears held as fp8.")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="cpu: checks, in the interpreter")
    parser.add_argument("--model", nargs="+", choices=sorted(MODELS))
    parser.add_argument("--tokens", nargs="+", type=int)
    parser.add_argument("--out", type=Path, default=Path("var/linears.csv"))
    options = parser.parse_args(argv)
    device, small = torch.device(options.device), options.device == "cpu"
    if not small and not torch.cuda.is_available():
        print("linears.py: torch sees no CUDA device; --device cpu checks and times nothing", file=sys.stderr)
        return 2
    tokens = options.tokens or ((1, 17) if small else TOKENS)
    if min(tokens) < 1:
        parser.error(f"--tokens: at least 1, not {min(tokens)}")
    bandwidth = None if small else copy_bandwidth(device)
    rows: list[dict[str, Any]] = []
    for name in options.model or (["tiny"] if small else ["8b"]):
        for site in MODELS[name].sites():
            rows += compare(site, tokens, device, bandwidth)
            options.out.parent.mkdir(parents=True, exist_ok=True)
            with options.out.open("w", newline="", encoding="utf-8") as stream:
                writer = csv.DictWriter(stream, FIELDS)
                writer.writeheader()
                writer.writerows(rows)
    wrong = sum(not row["error"] <= TOLERANCE[DTYPE] for row in rows)
    print(f"fp8: {wrong} of {len(rows)} not right; written to {options.out}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
