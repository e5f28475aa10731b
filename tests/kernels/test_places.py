"""Scratch of compiled loops: each who takes part has a place of its own, or takes no part."""

from __future__ import annotations

import ctypes
import threading
import time
from typing import Any

import numpy as np
import pytest

from cpujit import Kernel, float32s, int64s, next_item, own_place, run, scratch

COUNTER, ITEMS, SCRATCH, SIZE, TAKEN, SPOILT = range(6)


def _fill(arguments: Any) -> None:
    """Each item fills the place with its own number, works on, and looks whether that still stands there."""
    given = int64s(arguments, (SPOILT + 1,))
    place = own_place(given[SCRATCH])
    if place == 0:
        return
    numbers = float32s(place, (given[SIZE],))
    taken, spoilt = int64s(given[TAKEN], (given[ITEMS],)), int64s(given[SPOILT], (given[ITEMS],))
    while True:
        item = next_item(arguments)
        if item >= given[ITEMS]:
            break
        for index in range(given[SIZE]):
            numbers[index] = item
        for index in range(given[SIZE]):
            spoilt[item] += numbers[index] != item
        taken[item] += 1


FILL = Kernel(_fill)


def fill(items: int, size: int, places: int, threads: int) -> tuple[Any, Any, int]:
    """How often each item was taken and found changed, and how many came for a place."""
    taken, spoilt = np.zeros(items, np.int64), np.zeros(items, np.int64)
    address = scratch(4 * size, places)
    given = np.array([0, items, address, size, taken.ctypes.data, spoilt.ctypes.data], np.int64)
    run(FILL.address, given.ctypes.data, threads)
    return taken, spoilt, (ctypes.c_int64 * 1).from_address(address)[0]


@pytest.mark.parametrize(("places", "threads"), [(1, 1), (2, 2), (5, 5), (1, 4), (2, 4)])
def test_every_item_is_done_in_a_place_that_nobody_else_writes_to(places: int, threads: int) -> None:
    for _ in range(50):
        taken, spoilt, came = fill(items=40, size=700, places=places, threads=threads)
        assert (taken == 1).all()
        assert not spoilt.any()
        assert came >= 1


def test_who_comes_when_all_places_are_taken_does_nothing() -> None:
    most, deadline = 0, time.monotonic() + 60
    # on a busy machine nobody may get the chance to follow for a while
    while most < 2 and time.monotonic() < deadline:
        taken, spoilt, came = fill(items=40, size=5000, places=1, threads=4)
        assert (taken == 1).all()
        assert not spoilt.any()
        most = max(most, came)
    assert most > 1, "nobody ever followed"


def test_places_lie_apart_in_whole_cache_lines() -> None:
    for size in (1, 64, 65, 1000):
        address = scratch(size, 3)
        assert address % 64 == 0
        head = (ctypes.c_int64 * 3).from_address(address)
        assert head[1] == 3
        assert size <= head[2] < size + 64
        assert head[2] % 64 == 0


def test_each_thread_has_scratch_of_its_own() -> None:
    found: list[int] = []
    both = threading.Barrier(2)

    def ask() -> None:
        found.append(scratch(100, 2))
        both.wait()

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 2
