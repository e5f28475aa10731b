"""``rank_pattern`` and ``alpha_pattern``: module names with wildcards, matched in bounded time."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Generic, TypeVar

V = TypeVar("V")

MAX_ENTRIES = 1024
"""Of any list or map of modules or layers: the check's time, which every stream of a worker waits for, is bounded."""


def suffixes(module: str) -> list[str]:
    """What follows each of its dots: ``a.b.c`` → ``b.c``, ``c``."""
    parts = module.split(".")
    return [".".join(parts[start:]) for start in range(1, len(parts))]


class Pattern(Generic[V]):
    """``rank_pattern`` or ``alpha_pattern``: the first key that fits a module decides.

    A key fits as PEFT's ``re.match(rf"(.*\\.)?({key})$", module)`` has it for plain keys, where ``.`` stands for any
    character and ``\\.`` for a dot. Keys are read once, to the bytes wanted and a mask without the wildcards.
    """

    __slots__ = ("_by_length",)

    def __init__(self, values: Mapping[str, V]) -> None:
        self._by_length: dict[int, list[tuple[int, int, int, V]]] = {}
        for order, (key, value) in enumerate(values.items()):
            characters = re.findall(r"\\\.|.", key)
            wanted = int.from_bytes("".join(c[-1] for c in characters).encode("ascii"), "big")
            mask = int.from_bytes(bytes(0 if c == "." else 0xFF for c in characters), "big")
            self._by_length.setdefault(len(characters), []).append((order, wanted & mask, mask, value))

    def first(self, module: str, default: V) -> V:
        """The value of the first key that fits, else the default."""
        if not self._by_length:
            return default
        first, found = MAX_ENTRIES, default
        for text in (module, *suffixes(module)):
            data = text.encode()
            have = int.from_bytes(data, "big")
            for order, wanted, mask, value in self._by_length.get(len(data), ()):
                if have & mask == wanted:
                    if order < first:
                        first, found = order, value
                    break
        return found
