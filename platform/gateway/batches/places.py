"""Which lines run: places that the batches of one process share."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Protocol


class Holder(Protocol):
    """A batch. :ivar wants: places that it would fill now, had it all of them."""

    @property
    def wants(self) -> int: ...


class Places:
    """``most`` lines run at once, of each batch an equal part of them; what one leaves of its part is the others'.

    No line is stopped for another, so a batch of long ones gives back what it has too many only as they end. One place
    above ``most`` is for a batch of which no line runs, so that others get on meanwhile.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._closed = False
        self._held: dict[Holder, int] = {}
        self._waiting: dict[Holder, deque[asyncio.Future[None]]] = {}

    @property
    def taken(self) -> int:
        return sum(self._held.values())

    @contextmanager
    def shared_with(self, holder: Holder) -> Iterator[None]:
        """Around all of its lines."""
        self._held[holder], self._waiting[holder] = 0, deque()
        try:
            yield
        finally:
            del self._held[holder], self._waiting[holder]
            self._share()

    @asynccontextmanager
    async def one(self, holder: Holder) -> AsyncIterator[None]:
        """Around a line. It may have waited for long."""
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[holder].append(place)
        self._share()
        try:
            await place
            yield
        finally:
            if place.done() and not place.cancelled():
                self._held[holder] -= 1
                self._waiting[holder] = self._waiting.pop(holder)  # behind the others that have as few
            elif place in self._waiting[holder]:
                self._waiting[holder].remove(place)
            self._share()

    def look(self, *, closed: bool) -> None:
        """From time to time, since nobody tells when it wants less. ``closed``: until the next look no line begins."""
        self._closed = closed
        self._share()

    def _share(self) -> None:
        """What is free goes to whoever has fewest, and among those in turn."""
        while not self._closed and (asking := [holder for holder, places in self._waiting.items() if places]):
            holder = min(asking, key=self._held.__getitem__)
            if not self._may_have_another(holder):
                return
            place = self._waiting[holder].popleft()
            if not place.done():  # cancelled, and not yet aware of it
                place.set_result(None)
                self._held[holder] += 1

    def _may_have_another(self, holder: Holder) -> bool:
        held = self._held[holder]
        if not held:
            return self.taken <= self._most
        return self.taken < self._most and held < self._part()

    def _part(self) -> int:
        """How many each may have: what those leave who want fewer is divided among the others."""
        left = self._most
        wants = sorted(max(holder.wants, held) for holder, held in self._held.items())
        for number, want in enumerate(wants):
            part = -(-left // (len(wants) - number))
            if want > part:
                return part
            left -= want
        return self._most
