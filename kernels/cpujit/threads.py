"""Calls compiled code once on each thread of a team."""

from __future__ import annotations

import ctypes
import os
import struct
import threading
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch

from cpujit import team

_BODY = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_CALL = struct.Struct("3q")
# How often a follower looks for the next call before it goes to sleep: about half a millisecond.
_PATIENCE = 20_000


def run(body: int, arguments: int, threads: int) -> None:
    """Call ``body(arguments)`` on some threads, up to ``threads`` at once, and wait for those that have begun.

    The body divides its work by taking items (see :func:`cpujit.memory.next_item`): the caller alone would do all of
    it, and does where the others are kept from running. More than ``threads`` may take part one after another, and the
    caller need not be the first: a body must not count who comes to choose its work or memory, except by
    :func:`cpujit.places.own_place`. The others stay awake between calls that follow each other closely:
    under a microsecond to start and join two. The GIL is free meanwhile. Of two callers at once, one runs alone.

    :param body: address of a compiled ``void body(void *)`` (:attr:`cpujit.kernel.Kernel.address`).
    :param arguments: address of what it gets.
    """
    if threads <= 1 or not _team().lead(body, arguments, threads):
        _function(body)(arguments)


def num_threads() -> int:
    """How many :func:`run` is to be given: torch's own number."""
    return torch.get_num_threads()


class _Team:
    """Threads that follow one leader at a time; they are made when first wanted, and end with the process."""

    def __init__(self) -> None:
        self._state = np.zeros(team.SIZE, np.int64)
        self._address = int(self._state.ctypes.data)
        self._call: Any = self._state.data
        self._state[team.PATIENCE] = _PATIENCE
        self._lead, self._follow = _function(team.LEAD.address), _function(team.FOLLOW.address)
        self._followers = 0
        self._leading = threading.Lock()
        self._calls = threading.Condition()

    def lead(self, body: int, arguments: int, threads: int) -> bool:
        """False: somebody else does."""
        if not self._leading.acquire(blocking=False):
            return False
        try:
            while self._followers < threads - 1:
                self._followers += 1
                threading.Thread(target=self._stay, name=f"cpujit-{self._followers}", daemon=True).start()
            _CALL.pack_into(self._call, 8 * team.BODY, body, arguments, threads - 1)
            if self._state[team.ASLEEP]:
                with self._calls:
                    self._calls.notify_all()
            self._lead(self._address)
        finally:
            self._leading.release()
        return True

    def _stay(self) -> None:
        while True:
            self._follow(self._address)
            with self._calls:
                self._state[team.ASLEEP] += 1
                # one that falls asleep just as a call comes misses it, which costs time and nothing else
                self._calls.wait()
                self._state[team.ASLEEP] -= 1


@cache
def _team() -> _Team:
    return _Team()


# A child has none of the threads, but the state of those that were just inside; it makes a team of its own.
os.register_at_fork(after_in_child=_team.cache_clear)


@cache
def _function(address: int) -> Callable[[int], None]:
    return _BODY(address)
