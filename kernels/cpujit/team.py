"""The compiled side of a team of threads: one leads, the others follow when they can.

Nobody waits for a thread that has not begun: one that the system keeps from running is simply not there, and the leader
does its part. With OpenMP's barrier the same thread stops everybody, 240 times a step.
"""

from __future__ import annotations

import platform
from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from cpujit.kernel import Kernel
from cpujit.memory import int64s

# The team's state, an int64 each; what different threads write lies in different cache lines.
DOOR, CALLS, BODY, ARGUMENTS, PLACES, PATIENCE, ASLEEP = 0, 8, 16, 17, 18, 19, 24
SIZE = 32

# DOOR holds how many followers are inside, and whether more may come in.
_OPEN = 1 << 32
_INSIDE = _OPEN - 1
# Looks at the door between two offers of the core to somebody else.
_LOOKS = 32

_I64 = ir.IntType(64)


def _place(builder: Any, state: Any, index: Any) -> Any:
    return builder.gep(state, [index])


@intrinsic
def _load(typing: Any, state: Any, index: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load_atomic(_place(builder, *arguments), "acquire", 8)

    return types.int64(state, types.int64), generate


def _exchange(operation: str) -> Any:
    @intrinsic
    def change(typing: Any, state: Any, index: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.atomic_rmw(operation, _place(builder, *arguments[:2]), arguments[2], "seq_cst")

        return types.int64(state, types.int64, types.int64), generate

    return change


_add, _and, _or = _exchange("add"), _exchange("and"), _exchange("or")


@intrinsic
def _replace(typing: Any, state: Any, index: Any, old: Any, new: Any) -> Any:
    """Compare and exchange; whether it did."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        found = builder.cmpxchg(_place(builder, *arguments[:2]), arguments[2], arguments[3], "seq_cst", "seq_cst")
        return builder.extract_value(found, 1)

    return types.boolean(state, types.int64, types.int64, types.int64), generate


@intrinsic
def _call(typing: Any, body: Any, argument: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [_I64.as_pointer()])
        pointers = [
            builder.inttoptr(arguments[0], kind.as_pointer()),
            builder.inttoptr(arguments[1], _I64.as_pointer()),
        ]
        builder.call(pointers[0], pointers[1:])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def _pause(typing: Any) -> Any:
    """Tells the core that it waits; nothing where there is no such instruction."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if platform.machine() in {"x86_64", "AMD64"}:
            kind = ir.FunctionType(ir.VoidType(), [])
            name = "llvm.x86.sse2.pause"
            builder.call(builder.module.globals.get(name) or ir.Function(builder.module, kind, name), [])
        return context.get_dummy_value()

    return types.void(), generate


_yield = types.ExternalFunction("sched_yield", types.int32())


@njit(inline="always")
def _wait(looks: int) -> None:
    _pause()
    if looks % _LOOKS == 0:
        _yield()


def _lead(state: Any) -> None:
    given = int64s(state, (SIZE,))
    body, arguments = given[BODY], given[ARGUMENTS]
    _add(state, CALLS, 1)
    _or(state, DOOR, _OPEN)
    _call(body, arguments)
    _and(state, DOOR, _INSIDE)
    looks = 0
    while _load(state, DOOR) != 0:
        looks += 1
        _wait(looks)


def _follow(state: Any) -> None:
    """Takes part in the leader's calls until there has been none for a while."""
    given = int64s(state, (SIZE,))
    done = looks = 0
    while looks < given[PATIENCE]:
        door, call = _load(state, DOOR), _load(state, CALLS)
        if door >= _OPEN and call != done and door - _OPEN < given[PLACES]:
            if _replace(state, DOOR, door, door + 1):
                # The door stays the same call's from here on: the leader waits for those inside.
                done = _load(state, CALLS)
                _call(given[BODY], given[ARGUMENTS])
                _add(state, DOOR, -1)
                looks = 0
        else:
            looks += 1
            _wait(looks)


LEAD, FOLLOW = Kernel(_lead), Kernel(_follow)
