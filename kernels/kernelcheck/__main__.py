"""``python -m kernelcheck [--target sm_90 …]``: exit status 1 when a kernel is beyond its limits."""

from __future__ import annotations

import argparse
import os
import sys

# What is left of the environment of tests would run the kernels on the CPU in place of compiling them.
os.environ.pop("TRITON_INTERPRET", None)

from kernelcheck.resources import TARGETS, Resources, compiled
from kernelcheck.variants import Variant, variants


def problem(variant: Variant, found: Resources) -> str | None:
    if found.spills > variant.limits.spills:
        return f"{found.spills} bytes or registers spilled"
    if found.registers > variant.limits.registers:
        return f"{found.registers} registers, at most {variant.limits.registers}"
    if found.shared > variant.limits.shared:
        return f"{found.shared} bytes of shared memory, at most {variant.limits.shared}"
    if variant.wide and found.narrow:
        return f"{found.narrow} loads of one or two bytes a thread"
    return None


def main() -> None:
    parser = argparse.ArgumentParser(prog="kernelcheck", description="Compile every Triton kernel, without a GPU.")
    parser.add_argument("--target", nargs="+", choices=tuple(TARGETS), default=list(TARGETS))
    targets = parser.parse_args().target
    failed = 0
    print(f"{'kernel':44} {'target':8} {'registers':>9} {'spills':>6} {'shared':>7} {'narrow loads':>12}")
    for target in targets:
        for variant in variants(target):
            found = compiled(variant, target)
            wrong = problem(variant, found)
            failed += wrong is not None
            line = (
                f"{variant.name:44} {target:8} {found.registers:9} {found.spills:6} {found.shared:7} {found.narrow:12}"
            )
            print(f"{line}  {wrong or ''}".rstrip(), flush=True)
    if failed:
        sys.exit(f"{failed} beyond their limits")


if __name__ == "__main__":
    main()
