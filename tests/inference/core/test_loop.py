"""What operators' loads leave behind in the loop."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from inference.adapter_format import STORED_FILES, content_digest, store_path
from inference.core.limits import Limits
from inference.core.loop import Loop
from inference.core.messages import LoadAdapter, Message, Reply, UnloadAdapter
from tests.inference.core.fake_runner import FakeRunner


class ReadingRunner(FakeRunner):
    """Remembers from where each adapter was read."""

    def __init__(self) -> None:
        super().__init__(num_slots=1)
        self.read: list[Path] = []

    def read_adapter(self, directory: Path) -> object:
        self.read.append(directory)
        return super().read_adapter(directory)


class House:
    """A loop by hand, with two adapters in the store and a copy of each where an operator has put it."""

    def __init__(self, directory: Path) -> None:
        self.runner = ReadingRunner()
        self.said: list[Any] = []
        store = directory / "store"
        limits = Limits(max_model_len=64, host_adapter_bytes=10_000)
        self.loop = Loop(self.runner, limits, base="base", store=store, send=self.said.append)
        self.places = [self._copies(directory / name, store) for name in ("first", "second")]
        self.digests = [content_digest(place) for place in self.places]
        self.stored = [store_path(store, digest) for digest in self.digests]

    def _copies(self, place: Path, store: Path) -> Path:
        place.mkdir()
        for name in STORED_FILES:
            (place / name).write_text(f"{place.name} {name}")
        shutil.copytree(place, store_path(store, content_digest(place)))
        return place

    def call(self, make: Callable[[int], Message]) -> Reply:
        """The reply; an adapter is read meanwhile."""
        number = len(self.said)
        self.loop._handle(make(number))
        deadline = time.monotonic() + 10
        while len(self.said) == number:
            assert time.monotonic() < deadline
            self.loop._poll_residency()
        reply = self.said[-1]
        assert isinstance(reply, Reply)
        return reply

    def load(self, number: int, place: Path | None) -> None:
        path = None if place is None else str(place)
        assert self.call(lambda call: LoadAdapter(call, self.digests[number], path)).error is None

    def unload(self, number: int) -> str | None:
        return self.call(lambda call: UnloadAdapter(call, self.digests[number])).error


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path)


@pytest.mark.parametrize("evicted", [False, True])
def test_an_unloaded_adapter_comes_from_the_store_again(house: House, evicted: bool) -> None:
    """Also when another had taken its slot, so that it was not there to be unloaded."""
    house.load(0, house.places[0])
    if evicted:
        house.load(1, None)
    assert house.unload(0) == ("AdapterNotFound" if evicted else None)
    house.load(0, None)
    expected = [house.places[0], *([house.stored[1]] if evicted else []), house.stored[0]]
    assert house.runner.read == expected


def test_a_load_without_a_place_is_from_the_store(house: House) -> None:
    house.load(0, house.places[0])
    house.load(1, None)  # takes its slot
    house.load(0, None)
    assert house.runner.read == [house.places[0], house.stored[1], house.stored[0]]
    house.load(1, None)
    house.load(0, None)
    assert len(house.runner.read) == 3, "both are in host memory"
