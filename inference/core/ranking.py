"""Names in the order of keys that mostly grow."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count
from typing import Any


class Ranking:
    """Finds the least name in amortised O(log names), however many keys have grown since.

    A name is listed under the key that it had once. One that has grown is noticed when it comes to the top; of one
    that may have fallen :meth:`put` has to tell. Among equals the one listed first is the least.

    :param key: the name's key as it is now.
    """

    def __init__(self, key: Callable[[str], Any]) -> None:
        self._key = key
        self._heap: list[tuple[Any, int, str]] = []
        self._listed: dict[str, tuple[Any, int, str]] = {}  # an entry of the heap that is not here is skipped
        self._numbers = count()

    def put(self, name: str) -> None:
        """List a name, or list it again because its key may have fallen."""
        entry = self._listed[name] = (self._key(name), next(self._numbers), name)
        heapq.heappush(self._heap, entry)
        if len(self._heap) > 4 * len(self._listed) + 64:
            self._heap = list(self._listed.values())
            heapq.heapify(self._heap)

    def drop(self, name: str) -> None:
        """Take a name out, if it is listed."""
        self._listed.pop(name, None)

    def least(self) -> str | None:
        """``None``: nothing is listed."""
        while self._heap:
            entry = self._heap[0]
            known, _, name = entry
            if self._listed.get(name) is not entry:
                heapq.heappop(self._heap)
                continue
            key = self._key(name)
            if key == known:
                return name
            grown = self._listed[name] = (key, next(self._numbers), name)
            heapq.heapreplace(self._heap, grown)
        return None
