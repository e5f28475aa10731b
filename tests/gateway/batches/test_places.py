"""How batches share the places of a process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gateway.batches.places import Places

MOST = 8


class Lines:
    """A batch of lines that run until they are told to end."""

    def __init__(self, places: Places, count: int) -> None:
        self.wants = count
        self.running: list[asyncio.Event] = []
        self.tasks = [asyncio.create_task(self._run(places)) for _ in range(count)]

    async def _run(self, places: Places) -> None:
        while True:  # as many more as are wanted
            async with places.one(self):
                ended = asyncio.Event()
                self.running.append(ended)
                await ended.wait()

    async def end(self, count: int = 1) -> None:
        for _ in range(count):
            self.running.pop(0).set()
            await settled()


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


@asynccontextmanager
async def begun(places: Places, count: int) -> AsyncIterator[Lines]:
    lines = Lines(places, count)
    with places.shared_with(lines):
        try:
            await settled()
            yield lines
        finally:
            for task in lines.tasks:
                task.cancel()
            await asyncio.gather(*lines.tasks, return_exceptions=True)


async def test_one_alone_has_all() -> None:
    places = Places(MOST)
    async with begun(places, 20) as lines:
        assert len(lines.running) == places.taken == MOST
        await lines.end(5)
        assert len(lines.running) == MOST
    assert places.taken == 0


async def test_a_newcomer_begins_at_once_and_comes_to_its_half() -> None:
    places = Places(MOST)
    async with begun(places, 20) as old, begun(places, 20) as new:
        assert (len(old.running), len(new.running)) == (MOST, 1)
        await new.end(3)  # short lines beside long ones
        assert (len(old.running), len(new.running)) == (MOST, 1)
        await old.end(4)
        assert (len(old.running), len(new.running)) == (4, 4)
        await new.end(9)
        await old.end(9)
        assert (len(old.running), len(new.running)) == (4, 4)
        async with begun(places, 3) as third:
            assert len(third.running) == 1
            await old.end(4)
            await new.end(4)
            assert sorted((len(old.running), len(new.running), len(third.running))) == [2, 3, 3]


async def test_what_one_leaves_is_the_others() -> None:
    places = Places(MOST)
    async with begun(places, 1) as small, begun(places, 20) as large:
        assert (len(small.running), len(large.running)) == (1, 7)
        await small.end()
        await large.end()
        assert (len(small.running), len(large.running)) == (1, 7)


async def test_what_is_between_two_lines_keeps_its_part() -> None:
    places = Places(MOST)
    async with begun(places, 4) as steady, begun(places, 20) as large:
        assert (len(steady.running), len(large.running)) == (4, 4)
        for task in steady.tasks:
            task.cancel()
        await settled()
        assert len(large.running) == 4
        steady.wants = 0
        places.look(closed=False)
        await settled()
        assert len(large.running) == MOST


async def test_with_one_place_a_second_batch_goes_on_too() -> None:
    places = Places(1)
    async with begun(places, 5) as one, begun(places, 5) as other, begun(places, 5) as third:
        assert [len(lines.running) for lines in (one, other, third)] == [1, 1, 0]
        await other.end()
        assert [len(lines.running) for lines in (one, other, third)] == [1, 0, 1]
        await third.end()
        assert [len(lines.running) for lines in (one, other, third)] == [1, 1, 0]


async def test_closed_no_line_begins() -> None:
    places = Places(MOST)
    async with begun(places, 20) as lines:
        places.look(closed=True)
        await lines.end(3)
        assert len(lines.running) == 5
        async with begun(places, 2) as others:
            assert others.running == []
        places.look(closed=False)
        await settled()
        assert len(lines.running) == MOST


async def test_who_is_cancelled_as_it_gets_a_place_gives_it_back() -> None:
    places = Places(1)
    async with begun(places, 1) as first, begun(places, 2) as second:
        places.look(closed=True)
        await second.end()
        assert second.running == []
        places.look(closed=False)
        second.tasks[0].cancel()  # of the two the one that has waited for longer
        await settled()
        assert second.tasks[0].done()
        assert len(first.running) == len(second.running) == 1
    assert places.taken == 0
