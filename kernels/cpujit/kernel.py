"""One compiled loop."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

from numba import cfunc, types

_SIGNATURE = types.void(types.CPointer(types.int64))


class Kernel:
    """Compiles ``body(arguments)``, where ``arguments`` points to int64s: addresses, sizes, a counter.

    The machine code is kept on disk beside Python's own compiled files (or in the user's cache directory) and is
    trusted as those are; where neither can be written, each process compiles for itself, about a second.

    :param contract: let a product and a sum become one instruction. The order of sums stays as written.
    """

    def __init__(self, body: Callable[[Any], None], *, contract: bool = True) -> None:
        self._body = body
        self._options: dict[str, Any] = {"fastmath": {"contract"}} if contract else {}

    @cached_property
    def address(self) -> int:
        """What :func:`cpujit.threads.run` takes; compiled when first asked for."""
        try:
            compiled = cfunc(_SIGNATURE, cache=True, **self._options)(self._body)
        except RuntimeError:  # no place for a cache
            compiled = cfunc(_SIGNATURE, **self._options)(self._body)
        self._compiled = compiled  # holds the code
        return int(compiled.address)
