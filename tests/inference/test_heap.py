"""What a process has loaded is not looked through by the garbage collector while it serves."""

from __future__ import annotations

import gc
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from inference import heap
from inference.core.limits import Limits
from inference.core.messages import decode
from inference.core.process import serve
from tests.inference.core.fake_runner import FakeRunner


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    yield
    gc.unfreeze()


def test_what_lives_is_left_alone_and_what_comes_later_is_not() -> None:
    lasting: list[object] = [[] for _ in range(10_000)]
    heap.settle()
    assert not any(found is lasting for found in gc.get_objects())
    later: list[object] = []
    later.append(later)
    assert any(found is later for found in gc.get_objects())


def test_a_core_does_so_before_it_serves(tmp_path: Path) -> None:
    path = tmp_path / "front"
    limits = Limits(max_model_len=64, max_running=4, token_budget=64, max_waiting=8, max_waiting_per_tenant=8)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen()
        core = threading.Thread(
            target=serve, args=(path, FakeRunner(), limits), kwargs={"base": "b", "store": tmp_path}, daemon=True
        )
        core.start()
        connection, _ = listener.accept()
        with connection:
            length = int.from_bytes(connection.recv(4), "little")
            decode(connection.recv(length))  # it is ready
            assert gc.get_freeze_count() > 10_000
        core.join(10)
    assert not core.is_alive()
