"""The inner loop of products of 8-bit integers: as :mod:`cpujit.tile`, with four products to each lane of a sum.

AVX-512's ``vpdpbusd`` multiplies unsigned bytes by signed ones and adds four neighbouring products to 32 bits, exactly.
"""

from __future__ import annotations

from typing import Any

from llvmlite import binding, ir
from numba import njit, types
from numba.extending import intrinsic

from cpujit.tile import LANES, _declared, _load, _unpacked

_F32, _I64, _I32 = ir.FloatType(), ir.IntType(64), ir.IntType(32)
_SUMS, _FLOATS = ir.VectorType(_I32, LANES), ir.VectorType(_F32, LANES)
_BYTES = ir.IntType(8).as_pointer()
GROUP = 4
"""Products that one lane adds up at a time: operands lie in groups of so many ``k``."""
SPAN = 64
"""Numbers of a row that share a scale."""
MOST_ROWS = 6
"""Rows of the largest tile: twelve sums of integers, twelve of floats, and what feeds them fit 32 registers."""


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


def _tile(rows: int, *, prefetch: bool) -> Any:
    @intrinsic
    def tile(  # noqa: PLR0917 a loop without an object to hold them
        typing: Any, x: Any, w: Any, spans: Any, addend: Any, out: Any, ahead: Any
    ) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            _emit(builder, rows, prefetch, [_unpacked(builder, argument) for argument in arguments])
            return context.get_dummy_value()

        pair, four = types.UniTuple(types.int64, 2), types.UniTuple(types.int64, 4)
        return types.void(four, pair, types.int64, pair, pair, types.int64), generate

    return tile


class _Loop:
    """A counted loop, entered when made; what it carries are phi nodes."""

    def __init__(self, b: Any, name: str, starts: list[Any]) -> None:
        before = b.block
        self._b, self._body, self.after = b, b.append_basic_block(name), b.append_basic_block(f"after_{name}")
        b.branch(self._body)
        b.position_at_end(self._body)
        self.step = b.phi(_I64)
        self.step.add_incoming(_I64(0), before)
        self.carried = [b.phi(start.type) for start in starts]
        for phi, start in zip(self.carried, starts, strict=True):
            phi.add_incoming(start, before)

    def close(self, count: Any, new: list[Any]) -> list[Any]:
        """Goes on while there are steps left; returns what the last one has carried."""
        following = self._b.add(self.step, _I64(1))
        self.step.add_incoming(following, self._b.block)
        for phi, value in zip(self.carried, new, strict=True):
            phi.add_incoming(value, self._b.block)
        self._b.cbranch(self._b.icmp_signed("<", following, count), self._body, self.after)
        self._b.position_at_end(self.after)
        return new


def _emit(b: Any, rows: int, prefetch: bool, arguments: list[Any]) -> None:
    (x, x_stride, notes, notes_stride), (w, w_scales), spans, addend, out, ahead = arguments
    dot = _declared(b, "llvm.x86.avx512.vpdpbusd.512", _SUMS, [_SUMS] * 3)
    fma = _declared(b, f"llvm.fma.v{LANES}f32", _FLOATS, [_FLOATS] * 3)
    numbers = [b.add(x, b.mul(x_stride, _I64(row))) for row in range(rows)]
    own_notes = [b.add(notes, b.mul(notes_stride, _I64(row))) for row in range(rows)]
    span = _Loop(b, "span", [ir.Constant(_FLOATS, [0.0] * LANES)] * (2 * rows))
    note = [b.add(address, b.shl(span.step, _I64(3))) for address in own_notes]
    first = b.mul(span.step, _I64(SPAN // GROUP))
    starts = [_repeated(b, b.add(address, _I64(4)), _I32) for address in note]
    inner = _Loop(b, "group", [start for start in starts for _ in range(2)])
    step = b.add(first, inner.step)
    at = b.add(w, b.shl(step, _I64(7)))
    weights = [_integers(b, at, 64 * vector) for vector in range(2)]
    if prefetch:
        hint = _declared(b, "llvm.prefetch.p0", ir.VoidType(), [_BYTES, _I32, _I32, _I32])
        b.call(hint, [b.inttoptr(b.add(ahead, b.shl(step, _I64(6))), _BYTES), _I32(0), _I32(2), _I32(1)])
    sums = []
    for row in range(rows):
        bytes_ = _repeated(b, b.add(numbers[row], b.shl(step, _I64(2))), _I32)
        sums += [b.call(dot, [inner.carried[2 * row + v], weights[v], bytes_]) for v in range(2)]
    sums = inner.close(_I64(SPAN // GROUP), sums)
    scales = [_repeated(b, address, _F32) for address in note]
    totals = [
        b.call(fma, [b.sitofp(total, _FLOATS), scales[index // 2], span.carried[index]])
        for index, total in enumerate(sums)
    ]
    _store(b, span.close(spans, totals), w_scales, addend, out)


def _store(b: Any, totals: list[Any], scales: Any, addend: Any, out: Any) -> None:
    fma = _declared(b, f"llvm.fma.v{LANES}f32", _FLOATS, [_FLOATS] * 3)
    for index, total in enumerate(totals):
        row, offset = index // 2, 64 * (index % 2)
        base, target = (b.add(place[0], b.mul(place[1], _I64(row))) for place in (addend, out))
        result = b.call(fma, [total, _load(b, scales, offset), _load(b, base, offset)])
        b.store(result, b.inttoptr(b.add(target, _I64(offset)), _FLOATS.as_pointer()), align=4)


def _by_rows(*, prefetch: bool) -> Any:
    t1, t2, t3, t4, t5, t6 = (_tile(rows, prefetch=prefetch) for rows in range(1, MOST_ROWS + 1))

    @njit(inline="never")
    def tile(  # noqa: PLR0917
        rows: Any, x: Any, w: Any, spans: Any, addend: Any, out: Any, ahead: Any
    ) -> None:
        if rows == 6:
            t6(x, w, spans, addend, out, ahead)
        elif rows == 5:
            t5(x, w, spans, addend, out, ahead)
        elif rows == 1:
            t1(x, w, spans, addend, out, ahead)
        elif rows == 2:
            t2(x, w, spans, addend, out, ahead)
        elif rows == 3:
            t3(x, w, spans, addend, out, ahead)
        else:
            t4(x, w, spans, addend, out, ahead)

    return tile


tile8 = _by_rows(prefetch=False)
"""``out[r, c] = addend[r, c] + w_scale[c] · Σ_s scale[r, s] · (start[r, s] + Σ_k x[r, k] · w[k, c])``

for 1 … 6 rows and 32 columns, where ``k`` runs over the 64 numbers of span ``s``. Arguments ``(rows, x, w, spans,
addend, out, ahead)``. ``x``: address of signed bytes and stride of their rows; address of pairs (float32 scale, int32
start), one a span, and stride of their rows. ``w``: address of unsigned bytes ``[16 · spans, 32, 4]``, four ``k`` of a
column side by side, and of the columns' scales. The rest as :data:`cpujit.tile.tile_1`.
"""

tile8_ahead = _by_rows(prefetch=True)
"""As :data:`tile8`, and asks for the ``1024 · spans`` bytes from ``ahead`` to come near."""
