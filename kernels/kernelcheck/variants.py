"""What is compiled: each kernel as its own package launches it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import triton
import triton.language as tl

from fp8_linear import tiles as fp8_tiles
from fp8_linear import triton_kernels as fp8_linear
from fp8_linear.triton_product import ADD_BN
from paged_attention import attention
from paged_attention import triton_kernels as paged
from sgmv import triton_kernels as sgmv
from sgmv import triton_pointwise as pointwise
from sgmv.triton_embedding import EMBED_BN, EMBED_BR
from sgmv.triton_gain import GAIN_BN
from sgmv.triton_site import BM, EXPAND_BR, Shape, is_even

TYPES = {
    "bf16": (torch.bfloat16, tl.bfloat16),
    "fp16": (torch.float16, tl.float16),
    "fp32": (torch.float32, tl.float32),
}
SITES = {
    "8b qkv": (4096, (4096, 1024, 1024)),
    "8b down": (14336, (4096,)),
    "8b head": (4096, (128256,)),
    "135m gate_up": (576, (1536, 1536)),
    "135m head": (576, (49152,)),
    "ragged": (2049, (300, 7, 130)),
}
"""Inputs and slices of sites whose sizes the kernels are compiled for: Llama-3-8B's, SmolLM2-135M's, and none's."""
HELD_AS_FP8 = ("8b qkv", "8b down", "ragged")
GAINS = {"8b qkv": 6144, "8b head": 128256, "ragged": 437}
EMBEDDINGS = {"8b": 4096, "135m": 576}


@dataclass(frozen=True, slots=True)
class Limits:
    """The most that a variant may need. :param shared: bytes of one program. :param spills: none while decoding."""

    registers: int
    shared: int
    spills: int = 0


@dataclass(frozen=True, slots=True)
class Variant:
    """:param signature: argument → Triton's name of its type. :param constants: the others.
    :param aligned: arguments that are multiples of 16, as those of real launches are.
    :param wide: its 16-bit operands have to be loaded 16 bytes at a time. :param options: of the compiler.
    """

    kernel: Any
    label: str
    signature: dict[str, str]
    constants: dict[str, Any]
    aligned: frozenset[str]
    limits: Limits
    wide: bool
    warps: int = 4
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.kernel.__name__} {self.label}"


_POINTERS = {
    **dict.fromkeys(("tiles", "rows", "slots", "columns", "widths", "tables", "places"), "*i32"),
    **dict.fromkeys(("table", "tokens"), "*i64"),
    **dict.fromkeys(("h", "notes", "parts", "scales"), "*fp32"),
    "w": "*u8",
}
_STRIDES = ("x_stride", "y_stride", "residual_stride", "rank_stride", "q_stride", "k_stride", "v_stride", "w_stride")
_NUMBERS = {
    **dict.fromkeys((*_STRIDES, "num_slots", "vocabulary", "T", "window", "N", "K", "splits", "PART"), "i32"),
    **dict.fromkeys(("scale", "cap"), "fp32"),
}
_OPERANDS = ("x", "y", "residual", "bias", "q", "k", "v", "keys", "values", "out")
_ALIGNED = frozenset({*_POINTERS, *_OPERANDS, *_STRIDES, "N", "K", "PART"})
HEADS = {
    "8b": (32, 8, 128, 16),
    "135m": (9, 3, 64, 16),
    "80 wide": (32, 32, 80, 32),
    "96 wide": (32, 32, 96, 16),
    "128 wide": (64, 8, 128, 32),
    "256 wide": (8, 4, 256, 16),
}
"""Query heads, KV heads, their width and positions of a block, of models that the kernels are compiled for."""
FP8_LIMITS = {16: Limits(128, 64 * 1024), 64: Limits(168, 64 * 1024), 128: Limits(255, 100 * 1024, spills=16)}
RAGGED_FP8_LIMITS = {16: Limits(136, 64 * 1024), 64: Limits(252, 64 * 1024), 128: Limits(255, 100 * 1024, spills=72)}
"""By a tile's rows. The ragged are there to be right: linears of real models divide by 128. Of the aligned,
Triton 3.9 spills nothing, 3.6 in tiles of 128 rows for sm_80.
"""
CAPPED = ("256 wide",)
"""Those whose scores are capped."""


def variants(target: str) -> Iterator[Variant]:
    """:param target: a name of :data:`kernelcheck.resources.TARGETS`."""
    reading = {"sm_80": "bits", "gfx942": "native"}.get(target, "halves")
    found = [*_sgmv(reading), *_pointwise(), *_attention(), *_fp8_linear(reading, hip=target.startswith("gfx"))]
    yield from found
    yield from {variant.kernel.__name__: _of_ones(variant) for variant in reversed(found)}.values()


def _attention() -> Iterator[Variant]:
    for type_name, (dtype, _) in TYPES.items():
        for model, (heads, kv_heads, dim, block_size) in HEADS.items():
            shape = attention.Shape(heads, kv_heads, dim, block_size, dtype)
            common = {"D": dim, "BD": shape.bd}
            own = common | {
                "KV_HEADS": kv_heads,
                "GROUP": shape.group,
                "PAGE": shape.block_size,
                "BN": shape.turn,
                "CAPPED": model in CAPPED,
                "WIDE": False,
            }
            for stage, rows, segments, warps in (
                ("decode", shape.decode_rows, attention.SEGMENTS, 4),
                ("prefill", shape.prefill_rows, 1, shape.prefill_warps),
            ):
                label = f"{stage} {type_name} {model}"
                limits = Limits(224, 64 * 1024) if segments > 1 else Limits(255, 100 * 1024, spills=16)
                sizes = own | {"BM": rows, "SEGMENTS": segments}
                made = _variant(paged.attend, label, sizes, type_name, limits)
                out = {"out": "*fp32"} if segments > 1 else {}
                yield replace(made, signature=made.signature | out, warps=warps)
            label = f"{type_name} {model}"
            sizes = common | {"HEADS": heads, "SEGMENTS": attention.SEGMENTS}
            yield _variant(paged.combine, label, sizes, type_name, Limits(64, 4096))
            width = kv_heads * dim
            sizes = {"WIDTH": width, "BLOCK": int(triton.next_power_of_2(width))}
            # where there are more threads than pairs of numbers, each takes one
            yield replace(_variant(paged.store, label, sizes, type_name, Limits(64, 4096)), wide=False)


def _sgmv(reading: str) -> Iterator[Variant]:
    """:param reading: how the target reads fp8, as :func:`sgmv.triton_site.fp8_reading` has it."""
    for type_name, (dtype, weight) in TYPES.items():
        for site, (inputs, slices) in SITES.items():
            even = is_even((inputs, *slices))
            for fp8 in (None, reading) if site in HELD_AS_FP8 else (None,):
                shape = Shape.of(inputs, slices, dtype, fp8=fp8 is not None)
                held = {"WEIGHT": weight if fp8 is None else tl.uint8, "FP8": fp8}
                common = held | {"SLICES": len(slices), "SPLITS": shape.splits, "BM": BM, "WIDE": False}
                label = f"{type_name} {site}" if fp8 is None else f"{type_name} {site} fp8"
                for block in sorted({16, shape.br}):
                    own = {"K": inputs, "PART": shape.part, "BK": shape.bk, "BR": block}
                    limits = Limits(168 if even else 184, 64 * 1024)
                    made = _variant(sgmv.shrink, f"{label}, ranks by {block}", own | common, type_name, limits)
                    yield made if even else _unaligned(made)
                own = {"BN": shape.bn, "BR": EXPAND_BR, "EVEN": is_even(slices)}
                # 8 bytes: Triton 3.6 for sm_80 where nothing is aligned, 3.7 for sm_90 of the largest head; 3.9 none
                limits = Limits(128, 64 * 1024, spills=0 if even and site != "8b head" else 8)
                made = _variant(sgmv.expand, label, own | common, type_name, limits)
                yield made if even else _unaligned(made)


def _pointwise() -> Iterator[Variant]:
    for type_name, (_, weight) in TYPES.items():
        for site, width in GAINS.items():
            for added, biased in ((False, True), (True, False)):
                label = f"{type_name} {site}{' added' if added else ''}{' biased' if biased else ''}"
                sizes = {"WIDTH": width, "WEIGHT": weight, "ADDED": added, "BIASED": biased}
                sizes["BN"] = min(GAIN_BN, triton.next_power_of_2(width))
                made = _variant(pointwise.amplify, label, sizes, type_name, Limits(64, 4096))
                yield made if width % 16 == 0 else _unaligned(made)
        for model, hidden in EMBEDDINGS.items():
            sizes = {"HIDDEN": hidden, "WEIGHT": weight, "BM": BM, "BN": EMBED_BN, "BR": EMBED_BR, "WIDE": False}
            # A's rows of a token are as long as the rank: whole vectors of them cannot be counted on
            yield replace(
                _variant(pointwise.embed, f"{type_name} {model}", sizes, type_name, Limits(128, 64 * 1024)), wide=False
            )


def _fp8_linear(reading: str, *, hip: bool) -> Iterator[Variant]:
    """Sizes are no constants of these kernels: there is the class of those that are aligned, and that of the others."""
    ends = {"BIASED": True, "ADDED": True}
    for type_name in ("bf16", "fp16"):
        for even in (True, False):
            label = f"{type_name} {'aligned' if even else 'ragged'}"
            for tile in fp8_tiles.TILES:
                sizes = {"BT": tile.bt, "BN": tile.bn, "BK": tile.bk, "FP8": reading, "EVEN": even, "WIDE": False}
                options = fp8_tiles.compiler_options(tile, hip=hip) | {"enable_fp_fusion": False}
                limits = (FP8_LIMITS if even else RAGGED_FP8_LIMITS)[tile.bt]
                for spread in (True, False):
                    own = sizes | ({"BIASED": False, "ADDED": False} if spread else ends) | {"SPREAD": spread}
                    name = f"{label} {tile.bt} rows{', a part of K' if spread else ''}"
                    made = _variant(fp8_linear.multiply, name, own, type_name, limits)
                    made = replace(made, warps=tile.warps, options=options)
                    yield made if even else _ragged(made)
            made = _variant(fp8_linear.add_parts, label, ends | {"BN": ADD_BN}, type_name, Limits(64, 4096))
            made = replace(made, options={"enable_fp_fusion": False})
            yield made if even else _ragged(made)


def _ragged(variant: Variant) -> Variant:
    """Rows of x, y and the residual begin anywhere; those of the weight do not."""
    return replace(variant, aligned=variant.aligned - {"x_stride", "residual_stride", "N", "K"}, wide=False)


def _of_ones(variant: Variant) -> Variant:
    """As a launch compiles it where every number that it is given is 1: then they are constants, which have no type.

    Numbers that a kernel is not specialised for, by ``do_not_specialize``, remain what they are.
    """
    names = [
        parameter.name
        for parameter in variant.kernel.params
        if variant.signature[parameter.name] == "i32" and not parameter.do_not_specialize
    ]
    return replace(
        variant,
        label="ones",
        limits=Limits(200, 64 * 1024),
        signature=variant.signature | dict.fromkeys(names, "constexpr"),
        constants=variant.constants | dict.fromkeys(names, 1),
        aligned=variant.aligned - set(names),
        wide=False,
    )


def _unaligned(variant: Variant) -> Variant:
    """Rows that begin anywhere."""
    return replace(variant, aligned=variant.aligned - set(_STRIDES[:3]), wide=False)


def _variant(kernel: Any, label: str, constants: dict[str, Any], type_name: str, limits: Limits) -> Variant:
    types = _POINTERS | _NUMBERS | dict.fromkeys(_OPERANDS, f"*{type_name}")
    signature = {name: "constexpr" if name in constants else types[name] for name in kernel.arg_names}
    return Variant(kernel, label, signature, constants, _ALIGNED, limits, wide=type_name != "fp32")
