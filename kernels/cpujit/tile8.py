"""The inner loop of products of 8-bit integers: as :mod:`cpujit.tile`, with four products to each lane of a sum.

AVX-512's ``vpdpbusd`` multiplies unsigned bytes by signed ones and adds four neighbouring products to 32 bits, exactly.
"""

from __future__ import annotations

from typing import Any

from llvmlite import binding, ir
from numba import types
from numba.extending import intrinsic

from cpujit.tile import LANES, _by_rows, _declared, _load, _unpacked

_F32, _I64, _I32 = ir.FloatType(), ir.IntType(64), ir.IntType(32)
_SUMS, _FLOATS = ir.VectorType(_I32, LANES), ir.VectorType(_F32, LANES)
_BYTES = ir.IntType(8).as_pointer()
GROUP = 4
"""Products that one lane adds up at a time: operands lie in groups of so many ``k``."""


def supported() -> bool:
    """Whether this machine has the instruction."""
    features = binding.get_host_cpu_features()
    return bool(features.get("avx512f")) and bool(features.get("avx512vnni"))


def _integers(b: Any, address: Any, offset: int = 0) -> Any:
    return b.load(b.inttoptr(b.add(address, _I64(offset)), _SUMS.as_pointer()), align=4)


def _repeated(b: Any, address: Any, kind: Any) -> Any:
    """One number in every lane."""
    vector = ir.VectorType(kind, LANES)
    empty = ir.Constant(vector, ir.Undefined)
    first = b.insert_element(empty, b.load(b.inttoptr(address, kind.as_pointer()), align=4), _I32(0))
    return b.shuffle_vector(first, empty, ir.Constant(_SUMS, [0] * LANES))


def _tile(rows: int, vectors: int, *, prefetch: bool) -> Any:
    @intrinsic
    def tile(  # noqa: PLR0917 a loop without an object to hold them
        typing: Any, x: Any, w: Any, depth: Any, addend: Any, out: Any, ahead: Any
    ) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            _emit(builder, rows, vectors, prefetch, [_unpacked(builder, argument) for argument in arguments])
            return context.get_dummy_value()

        pair, triple = types.UniTuple(types.int64, 2), types.UniTuple(types.int64, 3)
        return types.void(triple, triple, types.int64, pair, pair, types.int64), generate

    return tile


def _emit(b: Any, rows: int, vectors: int, prefetch: bool, arguments: list[Any]) -> None:
    (x, x_stride, x_scales), (w, start, w_scales), depth, addend, out, ahead = arguments
    dot = _declared(b, "llvm.x86.avx512.vpdpbusd.512", _SUMS, [_SUMS] * 3)
    before, loop, after = b.block, b.append_basic_block("depth"), b.append_basic_block("store")
    own = [b.add(x, b.mul(x_stride, _I64(row))) for row in range(rows)]
    starts = [_integers(b, start, 4 * LANES * vector) for vector in range(vectors)]
    b.branch(loop)

    b.position_at_end(loop)
    step = b.phi(_I64)
    step.add_incoming(_I64(0), before)
    sums = [[b.phi(_SUMS) for _ in range(vectors)] for _ in range(rows)]
    at = b.add(w, b.mul(step, _I64(GROUP * LANES * vectors)))
    weights = [_integers(b, at, GROUP * LANES * vector) for vector in range(vectors)]
    if prefetch:
        hint = _declared(b, "llvm.prefetch.p0", ir.VoidType(), [_BYTES, _I32, _I32, _I32])
        b.call(hint, [b.inttoptr(b.add(ahead, b.shl(step, _I64(6))), _BYTES), _I32(0), _I32(2), _I32(1)])
    new = []
    for row in range(rows):
        bytes_ = _repeated(b, b.add(own[row], b.shl(step, _I64(2))), _I32)
        new.append([b.call(dot, [sums[row][v], bytes_, weights[v]]) for v in range(vectors)])
    following = b.add(step, _I64(1))
    step.add_incoming(following, loop)
    for row in range(rows):
        for vector in range(vectors):
            sums[row][vector].add_incoming(starts[vector], before)
            sums[row][vector].add_incoming(new[row][vector], loop)
    b.cbranch(b.icmp_signed("<", following, depth), loop, after)

    b.position_at_end(after)
    _store(b, new, (x_scales, w_scales), addend, out)


def _store(b: Any, sums: list[list[Any]], scales: tuple[Any, Any], addend: Any, out: Any) -> None:
    fma = _declared(b, f"llvm.fma.v{LANES}f32", _FLOATS, [_FLOATS] * 3)
    for row, own in enumerate(sums):
        scale = _repeated(b, b.add(scales[0], _I64(4 * row)), _F32)
        base, target = (b.add(place[0], b.mul(place[1], _I64(row))) for place in (addend, out))
        for vector, total in enumerate(own):
            offset = 4 * LANES * vector
            number = b.fmul(b.sitofp(total, _FLOATS), _load(b, scales[1], offset))
            result = b.call(fma, [number, scale, _load(b, base, offset)])
            b.store(result, b.inttoptr(b.add(target, _I64(offset)), _FLOATS.as_pointer()), align=4)


tile8_2 = _by_rows(2, prefetch=False, make=_tile)
"""``out[r, c] = addend[r, c] + x_scale[r] · w_scale[c] · (start[c] + Σ_k x[r, k] · w[k, c])``, 1 … 12 rows, 32 columns.

Arguments ``(rows, x, w, depth, addend, out, ahead)``. ``x``: address of unsigned bytes, stride of its rows, address of
their scales. ``w``: address of signed bytes ``[depth, 32, 4]`` (four ``k`` of a column side by side), of the int32
``start`` and of the columns' scales. ``depth`` counts groups of four ``k``. The rest as :data:`cpujit.tile.tile_1`.
"""

tile8_2_ahead = _by_rows(2, prefetch=True, make=_tile)
"""As :data:`tile8_2`, and asks for the ``64 · depth`` bytes from ``ahead`` to come near."""
