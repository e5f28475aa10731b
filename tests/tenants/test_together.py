"""Lanes: who goes together, who must not wait for whom, and whose fault is whose."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg.errors import LockNotAvailable, UniqueViolation
from psycopg_pool import PoolTimeout

from tenants import together
from tenants.together import MOST, TRIES, ask

ACME, GLOBEX = UUID(int=1), UUID(int=2)


@dataclass
class Statement:
    """One under way. :ivar names: the ``request`` of each item."""

    link: Link
    names: list[str]
    patience: bool
    done: asyncio.Future[list[Any]] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def answer(self, **answers: Any) -> None:
        """Each request's name, unless told otherwise."""
        self.done.set_result([answers.get(name, name) for name in self.names])

    async def fetchone(self) -> tuple[list[Any]]:
        return (await self.done,)


class Link:
    """A connection of :class:`Held`."""

    def __init__(self, pool: Held) -> None:
        self.pool, self.broken = pool, False

    async def execute(self, statement: str, arguments: tuple[str, bool]) -> Statement:
        assert statement == "SELECT tenants_settle_together(%s, %s)"
        names = [item["request"] for item in json.loads(arguments[0])]
        statement = Statement(self, names, arguments[1])
        self.pool.sent.append(statement)
        await statement.done
        return statement


class Held:
    """A pool whose statements end when they are told to."""

    max_size = 4

    def __init__(self) -> None:
        self.sent: list[Statement] = []
        self.out = 0
        self.refuses: Exception | None = None

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Link]:
        if self.refuses is not None:
            raise self.refuses
        self.out += 1
        try:
            yield Link(self)
        finally:
            for _ in range(5):
                await asyncio.sleep(0)  # as where somebody else holds the pool's lock
            self.out -= 1


@pytest.fixture
def pool() -> Any:
    return Held()


async def quiet() -> None:
    for _ in range(40):
        await asyncio.sleep(0)


def asking(pool: Any, *names: str, party: UUID = ACME) -> list[asyncio.Task[Any]]:
    return [asyncio.create_task(ask(pool, "tenants_settle_together", party, {"request": name})) for name in names]


async def test_who_comes_alone_goes_at_once_and_who_comes_meanwhile_goes_together(pool: Any) -> None:
    first = asking(pool, "a")
    await quiet()
    later = asking(pool, "d", "c") + asking(pool, "b", party=GLOBEX)
    await quiet()
    assert [statement.names for statement in pool.sent] == [["a"]]
    pool.sent[0].answer()
    await quiet()
    assert pool.sent[1].names == ["b", "c", "d"], "in the order of their ids"
    assert not pool.sent[1].patience
    pool.sent[1].answer()
    assert await asyncio.gather(*first, *later) == ["a", "d", "c", "b"], "each its own answer"
    await quiet()
    assert pool.out == 0, "the connection is back"


async def test_tenants_take_turns_and_no_statement_grows_without_end(pool: Any) -> None:
    first = asking(pool, "first")
    await quiet()
    many = asking(pool, *(f"m{number:02}" for number in range(2 * MOST)))
    few = asking(pool, "x1", "x2", party=GLOBEX)
    pool.sent[0].answer()
    await quiet()
    assert pool.sent[1].names == [*(f"m{number:02}" for number in range(MOST - 2)), "x1", "x2"]
    for statement in (1, 2, 3):
        pool.sent[statement].answer()
        await quiet()
    assert len(await asyncio.gather(*first, *many, *few)) == 2 * MOST + 3


async def test_who_is_busy_goes_again_and_then_waits_in_a_lane_of_its_own(pool: Any) -> None:
    acme = asking(pool, "a")
    for tries in range(TRIES):
        await quiet()
        assert (pool.sent[tries].names, pool.sent[tries].patience) == (["a"], False)
        pool.sent[tries].answer(a=None)
    await quiet()
    assert (pool.sent[-1].names, pool.sent[-1].patience) == (["a"], True)
    own = pool.sent[-1]
    acme += asking(pool, "b", "c")  # they would wait for the same
    globex = asking(pool, "x", party=GLOBEX)
    await quiet()
    assert (pool.sent[-1].names, pool.sent[-1].patience) == (["x"], False), "nobody else waits for it"
    pool.sent[-1].answer()
    await globex[0]
    own.answer()
    await quiet()
    assert (pool.sent[-1].names, pool.sent[-1].patience) == (["b", "c"], True)
    pool.sent[-1].answer()
    await asyncio.gather(*acme)
    await quiet()
    again = asking(pool, "d")
    await quiet()
    assert not pool.sent[-1].patience, "the lane of its own ended with those who waited in it"
    pool.sent[-1].answer()
    await again[0]


async def crowded(pool: Any, parties: int) -> list[asyncio.Task[Any]]:
    """Each has a lane of its own by then."""
    tasks = [task for party in range(parties) for task in asking(pool, f"p{party}", party=UUID(int=party))]
    for _ in range(TRIES):
        await quiet()
        pool.sent[-1].answer(**{f"p{party}": None for party in range(parties)})
    await quiet()
    return tasks


async def test_lanes_of_their_own_leave_connections_to_others_and_take_turns(pool: Any) -> None:
    tasks = await crowded(pool, 5)
    assert pool.out == 1, "less than half of four, the shared lane's is back"
    served = []
    for number in range(5):  # though each of them goes on asking
        party = int(pool.sent[-1].names[0][1])
        served.append(party)
        tasks += asking(pool, f"p{party}-{number}", party=UUID(int=party))
        pool.sent[-1].answer()
        await quiet()
    assert served == [0, 1, 2, 3, 4]
    while not all(task.done() for task in tasks):
        for statement in pool.sent:
            if not statement.done.done():
                statement.answer()
        await quiet()


async def test_nobody_waits_for_a_place_without_end(pool: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(together, "PLACE_SECONDS", 0.05)
    first, second = await crowded(pool, 2)
    with pytest.raises(PoolTimeout, match="no place"):
        await second
    pool.sent[-1].answer()
    assert await first == "p0"


async def test_a_tenant_that_leaves_the_lane_of_all_takes_its_requests_along(pool: Any) -> None:
    first = asking(pool, "first")
    await quiet()
    tasks = asking(pool, *(f"m{number:02}" for number in range(3 * MOST))) + asking(pool, "x", party=GLOBEX)
    pool.sent[0].answer()
    await quiet()
    pool.sent[1].done.set_exception(LockNotAvailable("an account"))
    await quiet()
    assert len(pool.sent[2].names) == MOST, "its own go on together"
    while not all(task.done() for task in tasks):
        for statement in pool.sent[2:]:
            assert statement.patience, "the others are not tried with it"
            if not statement.done.done():
                statement.answer()
        await quiet()
    assert [task.result() for task in tasks] == [*(f"m{number:02}" for number in range(3 * MOST)), "x"]
    await first[0]


async def test_ones_fault_is_not_the_others(pool: Any) -> None:
    first = asking(pool, "first")
    await quiet()
    good, bad, other = *asking(pool, "good", "bad"), *asking(pool, "other", party=GLOBEX)
    await quiet()
    pool.sent[0].answer()
    await quiet()
    pool.sent[1].done.set_exception(UniqueViolation("bad"))
    await quiet()
    for _ in range(3):
        for statement in pool.sent[2:]:
            if not statement.done.done():
                assert len(statement.names) == 1
                if statement.names == ["bad"]:
                    statement.done.set_exception(UniqueViolation("bad"))
                else:
                    statement.answer()
        await quiet()
    assert await asyncio.gather(*first, good, other) == ["first", "good", "other"]
    with pytest.raises(UniqueViolation):
        await bad


async def test_a_lock_that_cannot_be_had_is_had_by_none_of_its_tenant(pool: Any) -> None:
    first = asking(pool, "a")
    for _ in range(TRIES):
        await quiet()
        pool.sent[-1].answer(a=None)
    await quiet()
    others = asking(pool, "b", "c")
    pool.sent[-1].done.set_exception(LockNotAvailable("a"))
    await quiet()
    assert pool.sent[-1].names == ["b", "c"]
    pool.sent[-1].done.set_exception(LockNotAvailable("b and c"))
    found = await asyncio.gather(*first, *others, return_exceptions=True)
    assert [str(error) for error in found] == ["a", "b and c", "b and c"], "not one after the other, 5 s each"


async def test_a_broken_connection_fails_those_who_were_on_it(pool: Any) -> None:
    first = asking(pool, "a")
    await quiet()
    later = asking(pool, "b")
    pool.sent[0].link.broken = True
    pool.sent[0].done.set_exception(psycopg.OperationalError("gone"))
    await quiet()
    assert pool.sent[1].link is not pool.sent[0].link
    pool.sent[1].answer()
    with pytest.raises(psycopg.OperationalError):
        await first[0]
    assert await later[0] == "b"


async def test_no_connection_is_told_to_all_who_wait_and_to_nobody_after_them(pool: Any) -> None:
    pool.refuses = psycopg.OperationalError("none")
    found = await asyncio.gather(*asking(pool, "a", "b"), return_exceptions=True)
    assert [str(error) for error in found] == ["none", "none"]
    pool.refuses = None
    again = asking(pool, "c")
    await quiet()
    pool.sent[-1].answer()
    assert await again[0] == "c"


async def test_who_leaves_before_it_was_sent_asked_nothing(pool: Any) -> None:
    first = asking(pool, "a")
    await quiet()
    leaver, stayer = asking(pool, "b", "c")
    await quiet()
    leaver.cancel()
    pool.sent[0].answer()
    await quiet()
    assert pool.sent[1].names == ["c"]
    pool.sent[1].answer()
    await asyncio.gather(*first, stayer)


async def test_who_comes_while_the_connection_is_given_back_is_served(pool: Any) -> None:
    first = asking(pool, "a")
    await quiet()
    pool.sent[0].answer()
    await first[0]
    assert pool.out == 1, "it is being given back"
    [late] = asking(pool, "b")
    await quiet()
    pool.sent[1].answer()
    await asyncio.wait_for(late, 1)
