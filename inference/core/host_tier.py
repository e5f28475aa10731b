"""Adapters in host memory: between the content store and the slots of the device."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Executor, Future

MAX_PREFETCHES = 4
"""Reads under way above which nothing is read ahead: what a slot waits for comes first."""


class HostTier:
    """What was read stays for the next time, up to ``capacity`` bytes; least recently used goes first.

    An adapter that is larger than all of it is read each time, and costs no other its place.

    The loop calls it; reads end in the executor's threads.

    :param read: digest → adapter, checked; called in ``executor``. What it raises is the future's.
    :param size: bytes that an adapter holds.
    :ivar hits: adapters found in memory; ``reads``: those that were not. ``num_bytes``: held now.
    """

    def __init__(
        self, read: Callable[[str], object], size: Callable[[object], int], capacity: int, executor: Executor
    ) -> None:
        self.capacity = capacity
        self.num_bytes = 0
        self.hits = self.reads = 0
        self._read, self._size, self._executor = read, size, executor
        # Reentrant: a read that is over when it is looked at ends in the thread that asked for it.
        self._lock = threading.RLock()
        self._kept: OrderedDict[str, tuple[object, int]] = OrderedDict()
        self._reading: dict[str, Future[object]] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def fetch(self, digest: str) -> Future[object]:
        """The adapter, at once if it is in memory."""
        with self._lock:
            if (kept := self._kept.get(digest)) is not None:
                self._kept.move_to_end(digest)
                self.hits += 1
                found: Future[object] = Future()
                found.set_result(kept[0])
                return found
            return self._start(digest)

    def prefetch(self, digest: str) -> None:
        """Read it ahead for a request that waits, unless enough is being read."""
        with self._lock:
            if digest not in self._kept and len(self._reading) < MAX_PREFETCHES:
                self._start(digest)

    def forget(self, digest: str) -> None:
        """Its source has changed or is gone; a read under way is not kept either."""
        with self._lock:
            self._reading.pop(digest, None)
            _, size = self._kept.pop(digest, (None, 0))
            self.num_bytes -= size

    def check(self) -> None:
        """Raises ``AssertionError`` unless the bytes counted are those kept."""
        with self._lock:
            kept = sum(size for _, size in self._kept.values())
            assert self.num_bytes == kept <= self.capacity, f"{self.num_bytes} bytes counted, {kept} kept"

    def _start(self, digest: str) -> Future[object]:
        """Under the lock, together with the look that found it missing: a read may end between the two."""
        if (reading := self._reading.get(digest)) is not None:
            return reading
        self.reads += 1
        future = self._reading[digest] = self._executor.submit(self._read, digest)
        future.add_done_callback(lambda done: self._ended(digest, done))
        return future

    def _ended(self, digest: str, future: Future[object]) -> None:
        with self._lock:
            if self._reading.get(digest) is not future:
                return
            del self._reading[digest]
            if future.cancelled() or future.exception() is not None:
                return  # asked for again, it is read again
            adapter = future.result()
            size = self._size(adapter)
            _, replaced = self._kept.pop(digest, (None, 0))
            self.num_bytes -= replaced
            if size > self.capacity:  # it would push out everybody else's before itself
                return
            self._kept[digest] = (adapter, size)
            self.num_bytes += size
            while self.num_bytes > self.capacity:
                _, (_, freed) = self._kept.popitem(last=False)
                self.num_bytes -= freed
