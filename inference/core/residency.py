"""Which adapter sits in which slot of the device."""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from inference.core.messages import ADAPTER_LOAD_SECONDS
from inference.errors import AdapterNotFound, InferenceError, Overloaded

log = logging.getLogger(__name__)

DRAIN_AFTER_SECONDS = 1.0
"""How long an adapter waits for a slot before a resident one stops taking new requests."""


@dataclass(slots=True, eq=False)
class _Resident:
    digest: str
    slot: int
    loading: Future[object] | None
    pins: int = 0
    last_used: float = 0.0
    wanted_at: float = 0.0
    draining: bool = False
    unloaded: bool = False
    settling: bool = False  # in its slot; those who wait for it are told by the next poll
    waiters: list[Any] = field(default_factory=list)

    @property
    def ready(self) -> bool:
        return self.loading is None and not self.settling


@dataclass(slots=True)
class _Wanted:
    since: float
    waiters: list[Any] = field(default_factory=list)


@dataclass(slots=True)
class Settled:
    """Waiters whose wait has ended: with a pin on ``slot``, or with ``error``."""

    digest: str
    slot: int
    error: InferenceError | None
    waiters: list[Any]


class Residency:
    """Digest → slot: least recently used goes first, pinned slots stay, reads happen beside the running step.

    An adapter that finds every slot pinned waits in line; after :data:`DRAIN_AFTER_SECONDS` the slot with the fewest
    pins takes no new requests until it is empty, so that adapters that are not resident cannot starve. Pins taken
    before that still run: a request that was promised a slot keeps it, unless it waits for its own turn behind those
    who stand in line (:meth:`~inference.core.scheduler.Scheduler.yield_slots`) and it is not being unloaded.

    A load costs every running request its time, so there is at most one between two steps, and those who waited for it
    begin a step later: a load and their prompts between two tokens of others would be a gap of both.

    Only the core's loop calls it. :param fetch: digest → what the runner loads, once it has been read.
    :param load: puts it into a slot. :param clear: empties one. :param wake: called when a read has ended.
    :ivar loads: adapters put into a slot, by the time from first asked for to usable (as :class:`Stats` counts it);
        ``load_seconds`` is all of it.
    :ivar failures: reads that failed. :ivar evictions: adapters that made room for another.
    """

    def __init__(
        self,
        num_slots: int,
        *,
        fetch: Callable[[str], Future[object]],
        load: Callable[[int, object], None],
        clear: Callable[[int], None],
        wake: Callable[[], None],
    ) -> None:
        self.num_slots = num_slots
        self._fetch, self._load, self._clear = fetch, load, clear
        self._wake = wake
        self._free = list(range(num_slots - 1, -1, -1))
        self._residents: dict[str, _Resident] = {}
        self._wanted: dict[str, _Wanted] = {}
        self.failures = self.evictions = 0
        self.loads = [0] * (len(ADAPTER_LOAD_SECONDS) + 1)
        self.load_seconds = 0.0

    @property
    def resident(self) -> list[str]:
        """Digests that requests can use at once, least recently used first."""
        ready = [entry for entry in self._residents.values() if entry.ready and not entry.unloaded]
        return [entry.digest for entry in sorted(ready, key=lambda entry: entry.last_used)]

    @property
    def pinned(self) -> int:
        """Pins held altogether."""
        return sum(entry.pins for entry in self._residents.values())

    @property
    def wanted(self) -> list[str]:
        """Digests that wait for a slot or are being read."""
        reading = [entry.digest for entry in self._residents.values() if not entry.ready]
        return [*self._wanted, *reading]

    @property
    def has_work(self) -> bool:
        """Whether :meth:`poll` may have something to do without a new event."""
        return bool(self._wanted) or any(not entry.ready for entry in self._residents.values())

    def is_resident(self, digest: str) -> bool:
        entry = self._residents.get(digest)
        return entry is not None and entry.ready and not entry.unloaded

    def acquire(self, digest: str, now: float) -> int | None:
        """Pin the adapter and return its slot; ``None``: :meth:`park` and wait."""
        entry = self._residents.get(digest)
        if entry is None or not entry.ready or entry.draining:
            return None
        entry.pins += 1
        entry.last_used = now
        return entry.slot

    def release(self, digest: str) -> None:
        """Give one pin back."""
        entry = self._residents[digest]
        entry.pins -= 1
        assert entry.pins >= 0, "an adapter was released more often than acquired"
        if entry.unloaded and not entry.pins:
            self._evict(entry)

    def park(self, digest: str, waiter: Any, now: float) -> None:
        """Remember a waiter; :meth:`poll` returns it, pinned, once the adapter is resident."""
        entry = self._residents.get(digest)
        if entry is not None and not entry.ready and not entry.unloaded:
            entry.waiters.append(waiter)
        else:
            self._wanted.setdefault(digest, _Wanted(now)).waiters.append(waiter)
            if entry is None and len(self._wanted) == 1 and self._has_slot():  # nobody stands in line before it
                self._start(digest, now)

    def unpark(self, digest: str, waiter: Any) -> None:
        """Forget a waiter (its request was aborted)."""
        wanted = self._wanted.get(digest)
        if wanted is not None and waiter in wanted.waiters:
            wanted.waiters.remove(waiter)
            if not wanted.waiters:
                del self._wanted[digest]
            return
        entry = self._residents.get(digest)
        if entry is not None and waiter in entry.waiters:
            entry.waiters.remove(waiter)

    def unload(self, digest: str) -> None:
        """Take the adapter out: at once if nobody uses it, else after those who do. Raises ``AdapterNotFound``."""
        entry = self._residents.get(digest)
        if entry is None or entry.unloaded:
            raise AdapterNotFound(f"The adapter {digest} is not loaded")
        entry.unloaded = entry.draining = True
        if not entry.pins and entry.ready:
            self._evict(entry)

    def poll(self, now: float, turn: Callable[[Any], Any] | None = None) -> list[Settled]:
        """Put one read adapter in its slot, hand out slots, start reads. Between steps only.

        :param turn: orders waiters: a slot goes to the adapter with the least one. Without it, first come.
        :returns: each waiter holds a pin.
        """
        settled = [self._settled(entry, now) for entry in list(self._residents.values()) if entry.settling]
        ended = [entry for entry in self._residents.values() if _has_ended(entry)]
        if ended:
            settled += self._finish(ended[0], now)
            self._wake()
        for digest in [digest for digest in self._wanted if digest in self._residents]:
            entry = self._residents[digest]
            if entry.ready and not entry.draining:
                settled.append(self._settle(entry, self._wanted.pop(digest).waiters, now))
        self._hand_out(now, turn)
        return settled

    def pressing(self, now: float, turn: Callable[[Any], Any]) -> Any:
        """The least turn of those who wait for a slot, once somebody has for :data:`DRAIN_AFTER_SECONDS` and every slot
        is in use; ``None``: nobody has, or there is one.
        """
        line = self._line()
        if not self._waits_long(line, now) or self._has_slot():
            return None
        return min(self._turn_of(digest, turn) for digest in line)

    def _line(self) -> list[str]:
        """Digests that wait for a slot."""
        return [digest for digest in self._wanted if digest not in self._residents]

    def _waits_long(self, line: list[str], now: float) -> bool:
        return bool(line) and now - min(self._wanted[digest].since for digest in line) >= DRAIN_AFTER_SECONDS

    def _turn_of(self, digest: str, turn: Callable[[Any], Any]) -> Any:
        return min(map(turn, self._wanted[digest].waiters))

    def _hand_out(self, now: float, turn: Callable[[Any], Any] | None) -> None:
        """Slots to those who wait for one, as far as there are any."""
        line = self._line()
        self._stop_draining(line, turn)
        if not line:
            return
        if not self._has_slot():
            if self._waits_long(line, now):
                self._drain_one(len(line))
            return
        if turn is not None:
            line.sort(key=lambda digest: self._turn_of(digest, turn))
        for digest in line:
            if not self._has_slot():
                return
            self._start(digest, now)

    def check(self) -> None:
        """Raises ``AssertionError`` unless every slot is free or held by one adapter."""
        slots = sorted([*self._free, *(entry.slot for entry in self._residents.values())])
        assert slots == list(range(self.num_slots)), f"slots leaked: {slots}"

    def _finish(self, entry: _Resident, now: float) -> list[Settled]:
        """Put it in its slot; those who wait for it are settled by the next :meth:`poll`, or now if it fails."""
        assert entry.loading is not None
        future, entry.loading = entry.loading, None
        try:
            self._put(entry, future.result())
        except InferenceError as error:
            return [self._fail(entry, error)]
        except Exception:
            # Anything else is our own mistake or the disk's; it still must not take other requests down.
            log.exception("reading the adapter %s failed", entry.digest)
            return [self._fail(entry, AdapterNotFound("The adapter cannot be read"))]
        seconds = now - entry.wanted_at
        self.loads[bisect_left(ADAPTER_LOAD_SECONDS, seconds)] += 1
        self.load_seconds += seconds
        entry.settling = True
        return []

    def _put(self, entry: _Resident, adapter: object) -> None:
        """In its slot. Where the device's memory ends before its slots do, adapters that nobody uses leave it."""
        while True:
            try:
                self._load(entry.slot, adapter)
                return
            except Overloaded:
                self._clear(entry.slot)
                idle = [each for each in self._idle() if each is not entry]
                if not idle:
                    raise
                self._evict_one(idle)

    def _settled(self, entry: _Resident, now: float) -> Settled:
        entry.settling = False
        settled = self._settle(entry, _taken(entry.waiters), now)
        if entry.unloaded and not entry.pins:
            self._evict(entry)
        return settled

    def _fail(self, entry: _Resident, error: InferenceError) -> Settled:
        self.failures += 1
        self._evict(entry, clear=False)
        return Settled(entry.digest, entry.slot, error, _taken(entry.waiters))

    def _settle(self, entry: _Resident, waiters: list[Any], now: float) -> Settled:
        entry.pins += len(waiters)
        entry.last_used = now
        return Settled(entry.digest, entry.slot, None, waiters)

    def _start(self, digest: str, now: float) -> None:
        """Begin to read it for a slot that is free or can be made so."""
        wanted, slot = self._wanted.pop(digest), self._take_slot()
        future = self._fetch(digest)
        self._residents[digest] = _Resident(
            digest, slot, future, last_used=now, wanted_at=wanted.since, waiters=wanted.waiters
        )
        future.add_done_callback(lambda _: self._wake())

    def _idle(self) -> list[_Resident]:
        return [entry for entry in self._residents.values() if not entry.pins and entry.ready]

    def _has_slot(self) -> bool:
        return bool(self._free or self._idle())

    def _take_slot(self) -> int:
        if not self._free:
            self._evict_one(self._idle())
        return self._free.pop()

    def _evict_one(self, idle: list[_Resident]) -> None:
        self.evictions += 1
        self._evict(min(idle, key=lambda entry: (not entry.draining, entry.last_used)))

    def _stop_draining(self, line: list[str], turn: Callable[[Any], Any] | None) -> None:
        """Slots take requests again where nobody stands in line any more, or those who wait for what is in the slot go
        before everybody who does: it would be taken from them for others, and read again for them.
        """
        draining = [entry for entry in self._residents.values() if entry.draining and not entry.unloaded]
        if not draining:
            return
        first = None if turn is None or not line else min(self._turn_of(digest, turn) for digest in line)
        for entry in draining:
            theirs = turn is not None and entry.digest in self._wanted and self._turn_of(entry.digest, turn)
            if not line or (first is not None and theirs and theirs < first):
                entry.draining = False

    def _drain_one(self, wanted: int) -> None:
        """One more slot stops taking requests, unless as many as are wanted already do."""
        draining = sum(entry.draining for entry in self._residents.values())
        busy = [
            entry
            for entry in self._residents.values()
            if entry.ready and not entry.draining and entry.digest not in self._wanted
        ]
        if busy and draining < wanted:
            min(busy, key=lambda entry: (entry.pins, entry.last_used)).draining = True

    def _evict(self, entry: _Resident, *, clear: bool = True) -> None:
        del self._residents[entry.digest]
        self._free.append(entry.slot)
        if clear:
            self._clear(entry.slot)


def _taken(waiters: list[Any]) -> list[Any]:
    """All of them; none are left."""
    taken = waiters.copy()
    waiters.clear()
    return taken


def _has_ended(entry: _Resident) -> bool:
    return entry.loading is not None and entry.loading.done()
