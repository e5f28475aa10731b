"""The one inner loop behind matrix products and attention: a few rows by a few vectors of columns, in registers.

Written in LLVM's own language because no compiler keeps the sums of such a loop in registers reliably when it is
written as loops over arrays: that alone is a factor of three.
"""

from __future__ import annotations

from typing import Any

from llvmlite import binding, ir
from numba import njit, types
from numba.extending import intrinsic

LANES = 16
"""Columns of one vector: 16 float32 fill a register of AVX-512."""
MOST_ROWS = 12
"""Rows of the largest tile: with two vectors of columns, 24 sums and what feeds them fit 32 registers."""

_F32, _I64, _I32 = ir.FloatType(), ir.IntType(64), ir.IntType(32)
_VECTOR = ir.VectorType(_F32, LANES)
_BYTES = ir.IntType(8).as_pointer()


def supported() -> bool:
    """Whether this machine has the registers that the tiles are made for."""
    return bool(binding.get_host_cpu_features().get("avx512f"))


def _declared(builder: Any, name: str, result: Any, arguments: list[Any]) -> Any:
    found = builder.module.globals.get(name)
    return found or ir.Function(builder.module, ir.FunctionType(result, arguments), name)


def _load(builder: Any, address: Any, offset: int = 0) -> Any:
    pointer = builder.inttoptr(builder.add(address, _I64(offset)), _VECTOR.as_pointer())
    return builder.load(pointer, align=4)


def _broadcast(builder: Any, address: Any) -> Any:
    number = builder.load(builder.inttoptr(address, _F32.as_pointer()), align=4)
    empty = ir.Constant(_VECTOR, ir.Undefined)
    first = builder.insert_element(empty, number, _I32(0))
    return builder.shuffle_vector(first, empty, ir.Constant(ir.VectorType(_I32, LANES), [0] * LANES))


def _tile(rows: int, vectors: int, *, prefetch: bool) -> Any:
    @intrinsic
    def tile(  # noqa: PLR0917 a loop without an object to hold them
        typing: Any, x: Any, w: Any, depth: Any, addend: Any, out: Any, ahead: Any
    ) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            _emit(builder, rows, vectors, prefetch, [_unpacked(builder, argument) for argument in arguments])
            return context.get_dummy_value()

        place = types.UniTuple(types.int64, 2)
        return types.void(place, place, types.int64, place, place, ahead), generate

    return tile


def _unpacked(builder: Any, value: Any) -> Any:
    """A pair of integers is an array to LLVM; a single one is itself."""
    if isinstance(value.type, ir.ArrayType):
        return [builder.extract_value(value, index) for index in range(value.type.count)]
    return value


def _emit(b: Any, rows: int, vectors: int, prefetch: bool, arguments: list[Any]) -> None:
    (x, x_stride), (w, w_stride), depth, (addend, addend_stride), (out, out_stride), ahead = arguments
    fma = _declared(b, f"llvm.fma.v{LANES}f32", _VECTOR, [_VECTOR] * 3)
    before, loop, after = b.block, b.append_basic_block("depth"), b.append_basic_block("store")
    own = [b.add(x, b.mul(x_stride, _I64(row))) for row in range(rows)]
    b.branch(loop)

    b.position_at_end(loop)
    step = b.phi(_I64)
    step.add_incoming(_I64(0), before)
    sums = [[b.phi(_VECTOR) for _ in range(vectors)] for _ in range(rows)]
    at = b.add(w, b.mul(step, w_stride))
    weights = [_load(b, at, 4 * LANES * vector) for vector in range(vectors)]
    if prefetch:
        hint = _declared(b, "llvm.prefetch.p0", ir.VoidType(), [_BYTES, _I32, _I32, _I32])
        for start in ahead if isinstance(ahead, list) else [ahead]:
            address = b.inttoptr(b.add(start, b.shl(step, _I64(6))), _BYTES)
            b.call(hint, [address, _I32(0), _I32(2), _I32(1)])
    new = []
    for row in range(rows):
        number = _broadcast(b, b.add(own[row], b.shl(step, _I64(2))))
        new.append([b.call(fma, [number, weights[v], sums[row][v]]) for v in range(vectors)])
    following = b.add(step, _I64(1))
    step.add_incoming(following, loop)
    for row in range(rows):
        for vector in range(vectors):
            sums[row][vector].add_incoming(ir.Constant(_VECTOR, [0.0] * LANES), before)
            sums[row][vector].add_incoming(new[row][vector], loop)
    b.cbranch(b.icmp_signed("<", following, depth), loop, after)

    b.position_at_end(after)
    for row in range(rows):
        for vector in range(vectors):
            offset = 4 * LANES * vector
            base = b.add(addend, b.mul(addend_stride, _I64(row)))
            total = b.fadd(new[row][vector], _load(b, base, offset))
            target = b.add(b.add(out, b.mul(out_stride, _I64(row))), _I64(offset))
            b.store(total, b.inttoptr(target, _VECTOR.as_pointer()), align=4)


def _by_rows(vectors: int, *, prefetch: bool) -> Any:
    t1, t2, t3, t4, t5, t6, t7, t8, t9, t10, t11, t12 = (
        _tile(rows, vectors, prefetch=prefetch) for rows in range(1, MOST_ROWS + 1)
    )

    @njit(inline="never")
    def tile(  # noqa: PLR0917
        rows: Any, x: Any, w: Any, depth: Any, addend: Any, out: Any, ahead: Any
    ) -> None:
        if rows == 8:
            t8(x, w, depth, addend, out, ahead)
        elif rows == 12:
            t12(x, w, depth, addend, out, ahead)
        elif rows == 1:
            t1(x, w, depth, addend, out, ahead)
        elif rows == 2:
            t2(x, w, depth, addend, out, ahead)
        elif rows == 3:
            t3(x, w, depth, addend, out, ahead)
        elif rows == 4:
            t4(x, w, depth, addend, out, ahead)
        elif rows == 5:
            t5(x, w, depth, addend, out, ahead)
        elif rows == 6:
            t6(x, w, depth, addend, out, ahead)
        elif rows == 7:
            t7(x, w, depth, addend, out, ahead)
        elif rows == 9:
            t9(x, w, depth, addend, out, ahead)
        elif rows == 10:
            t10(x, w, depth, addend, out, ahead)
        else:
            t11(x, w, depth, addend, out, ahead)

    return tile


tile_1 = _by_rows(1, prefetch=False)
"""``out[r, c] = addend[r, c] + Σ_k x[r, k] · w[k, c]`` for ``rows`` (1 … 12) rows and 16 columns.

Arguments ``(rows, x, w, depth, addend, out, ahead)``: each operand is a pair of address and stride, in bytes, of its
rows; ``depth`` (at least 1) is the number of ``k``. The sums run over ``k`` in order, whatever ``rows`` is, and each
row's are its own: a row's numbers are the same bits in any tile. ``addend`` may be ``out``; a stride of 0 repeats one.
"""

tile_1_ahead = _by_rows(1, prefetch=True)
"""As :data:`tile_1`, and asks for the ``64 · depth`` bytes from each of the two addresses in ``ahead`` to come near."""

tile_2 = _by_rows(2, prefetch=False)
"""As :data:`tile_1` for 32 columns."""

tile_2_ahead = _by_rows(2, prefetch=True)
"""As :data:`tile_2`, and asks for the ``64 · depth`` bytes from ``ahead`` to come near. Any address will do."""
