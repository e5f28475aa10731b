"""Bodies in several threads, as a gateway and the check of a batch's file read them."""

from __future__ import annotations

import gc
import threading
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from gateway import parsing


def test_two_at_once_leave_pythons_collector_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second asks whether it is on while the first has it off, and goes on once the first has ended."""
    reading, asked, ended = (threading.Event() for _ in range(3))

    def is_second() -> bool:
        return threading.current_thread().name == "second"

    def isenabled() -> bool:
        found = gc.isenabled()
        if is_second():
            asked.set()
            ended.wait(0.5)
        return found

    def loads(body: bytes) -> Any:
        if not is_second():
            reading.set()
            asked.wait(0.5)  # in vain where the second has to wait for the first
        return orjson.loads(body)

    def first() -> None:
        parsing.parse_json(b"1")
        ended.set()

    monkeypatch.setattr(parsing, "gc", SimpleNamespace(isenabled=isenabled, disable=gc.disable, enable=gc.enable))
    monkeypatch.setattr(parsing, "orjson", SimpleNamespace(loads=loads, JSONDecodeError=orjson.JSONDecodeError))
    threads = [threading.Thread(target=first), threading.Thread(target=parsing.parse_json, args=(b"2",), name="second")]
    try:
        threads[0].start()
        assert reading.wait(5)
        threads[1].start()
        for thread in threads:
            thread.join()
        assert gc.isenabled()
    finally:
        gc.enable()
