"""Tests that measure time run while nothing else of the run does: those marked ``alone``.

With ``-n 2`` two processes test beside each other. Each test holds a lock that all share, one that is ``alone`` holds
it for itself; whoever waits for that stands at a gate which no later test passes, so that it is not overtaken forever.

A plugin. The process that hands out tests makes the folder of the locks, and removes it when all others are done: a
lock whose file is gone would be another one for whoever opens it next.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

_KEY = "loraplex_turns"
_FOLDER = pytest.StashKey[str]()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tells each process where the locks are."""
    if _FOLDER not in node.config.stash:
        node.config.stash[_FOLDER] = tempfile.mkdtemp(prefix="loraplex-turns-")
    node.workerinput[_KEY] = node.config.stash[_FOLDER]


def pytest_unconfigure(config: pytest.Config) -> None:
    if _FOLDER in config.stash:
        shutil.rmtree(config.stash[_FOLDER], ignore_errors=True)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    with taken(item):
        return (yield)


@contextmanager
def taken(item: pytest.Item) -> Iterator[None]:
    """While it lasts it is this test's turn."""
    folder = getattr(item.config, "workerinput", {}).get(_KEY)
    if folder is None:  # one process: every test is alone
        yield
        return
    kind = fcntl.LOCK_EX if item.get_closest_marker("alone") else fcntl.LOCK_SH
    gate, place = _opened(folder, "gate"), _opened(folder, "place")
    try:
        fcntl.flock(gate, fcntl.LOCK_EX)
        fcntl.flock(place, kind)
        fcntl.flock(gate, fcntl.LOCK_UN)
        yield
    finally:
        os.close(gate)
        os.close(place)


def _opened(folder: str, name: str) -> int:
    return os.open(Path(folder) / name, os.O_CREAT | os.O_RDWR, 0o600)
