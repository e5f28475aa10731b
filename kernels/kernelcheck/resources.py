"""What a compiled kernel needs, read from its machine code without a GPU."""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kernelcheck.variants import Variant

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
_CUOBJDUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"


@dataclass(frozen=True, slots=True)
class Resources:
    """:param shared: bytes. :param narrow: instructions that load one or two bytes a thread from global memory."""

    registers: int
    spills: int
    shared: int
    narrow: int


def compiled(variant: Variant, target: str) -> Resources:
    """Raises what Triton raises when it does not compile."""
    names = variant.kernel.arg_names
    given = {name for name in variant.aligned if variant.signature.get(name) not in (None, "constexpr")}
    attributes = {(names.index(name),): [["tt.divisibility", 16]] for name in names if name in given}
    source = ASTSource(variant.kernel, signature=variant.signature, constexprs=variant.constants, attrs=attributes)
    kernel = triton.compile(
        source,
        target=TARGETS[target],
        options={"num_warps": variant.warps, "enable_fp_fusion": True, **variant.options},
    )
    shared = int(kernel.metadata.shared)
    if "cubin" in kernel.asm:
        return _nvidia(kernel.asm["cubin"], kernel.asm["ptx"], shared)
    return _amd(kernel.asm["amdgcn"], shared)


def _nvidia(cubin: bytes, ptx: str, shared: int) -> Resources:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        told = subprocess.run([_CUOBJDUMP, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout  # noqa: S603
    found = {name: int(number) for name, number in re.findall(r"(REG|STACK|LOCAL):(\d+)", told)}
    return Resources(
        found["REG"], found["STACK"] + found["LOCAL"], shared, len(re.findall(r"ld\.global\S*\.[bu](?:8|16)\b", ptx))
    )


def _amd(assembly: str, shared: int) -> Resources:
    found = {name: int(number) for name, number in re.findall(r"\.(\w+):\s+(\d+)$", assembly, re.MULTILINE)}
    spills = found["vgpr_spill_count"] + found["sgpr_spill_count"]
    return Resources(
        found["vgpr_count"], spills, shared, len(re.findall(r"(?:global|buffer)_load_[us](?:short|byte)", assembly))
    )
