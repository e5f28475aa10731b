"""Which worker is asked first, and who else when it fails."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import psycopg
import pytest

from fleet.dialects.base import Probe
from fleet.errors import NoWorker
from fleet.locality import PrefixIndex, prefix_chain
from fleet.replica import Replica
from fleet.router import FULL_QUEUE, Router
from inference.errors import WorkerUnavailable
from tests.fleet.test_routing import Scripted

PROMPT = list(range(64))


class Counted(Scripted):
    """Takes a moment to say how it is. :ivar gate: or until then."""

    def __init__(self, *, seconds: float = 0.0) -> None:
        super().__init__()
        self.seconds = seconds
        self.asked = 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def probe(self) -> Probe:
        self.asked += 1
        await asyncio.sleep(self.seconds)
        await self.gate.wait()
        return await super().probe()


class Database:
    """Gone; counts how often it was tried."""

    tried = 0

    def connection(self) -> Any:
        self.tried += 1
        raise psycopg.OperationalError("gone")


def worker(name: str, dialect: Scripted | None = None) -> Replica:
    return Replica(name=name, url=f"http://{name}", fingerprint="f", dialect=dialect or Scripted())


async def router(*replicas: Replica, ask: bool = True, database: Database | None = None) -> Router:
    made = Router(cast(Any, database or Database()), cast(Any, None))
    made._replicas = {replica.name: replica for replica in replicas}
    if ask:
        await made.refresh()
    return made


async def names(made: Router, digest: str | None = None) -> list[str]:
    found = await made.candidates(fingerprint="f", digest=digest, namespace="t", prompt=PROMPT)
    return [replica.name for replica in found]


@pytest.mark.parametrize("load", [0, 8, FULL_QUEUE, FULL_QUEUE * 10])
async def test_a_cached_prefix_decides_between_workers_that_are_loaded_alike(load: int) -> None:
    a, b = worker("a"), worker("b")
    made = await router(a, b)
    a.probe = b.probe = Probe(running=load)
    b.prefixes.add(prefix_chain(fingerprint="f", digest=None, namespace="t", prompt=PROMPT), "t")
    assert await names(made) == ["b", "a"]
    b.probe = Probe(running=load, waiting=4)
    assert await names(made) == ["b", "a"], "a few requests more are worth it"


@pytest.mark.parametrize("digest", [None, "d"])
async def test_an_idle_worker_goes_before_a_full_one_that_has_the_prefix(digest: str | None) -> None:
    a, b = worker("a"), worker("b")
    made = await router(a, b)
    b.prefixes.add(prefix_chain(fingerprint="f", digest=digest, namespace="t", prompt=PROMPT), "t")
    b.probe = Probe(running=16, waiting=64, resident=frozenset({"d"}))
    assert await names(made, digest) == ["a", "b"]
    b.probe = Probe(resident=frozenset({"d"}))
    a.probe = Probe(running=16, waiting=64)
    assert await names(made, digest) == ["b", "a"]


async def test_workers_without_slots_get_no_requests_for_adapters() -> None:
    a, b = worker("a"), worker("b")
    made = await router(a, b)
    a.probe = Probe(slots=0)
    assert await names(made, "d") == ["b"]
    assert await names(made) == ["a", "b"]
    b.probe = Probe(slots=0)
    assert sorted(await names(made, "d")) == ["a", "b"], "they say it themselves"


async def test_while_the_worker_with_slots_is_away_the_others_do_not_refuse_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fleet.router.SEEK_SECONDS", 0.05)
    monkeypatch.setattr("fleet.router.SEEK_PAUSE", 0.01)
    bare, dialect = Scripted(), Scripted()
    bare.state = Probe(slots=0)
    made = await router(worker("a", bare), worker("b", dialect))
    dialect.error = WorkerUnavailable("away")
    await made.refresh()
    with pytest.raises(NoWorker):
        await names(made, "d")
    assert await names(made) == ["a"]


async def test_who_lacked_the_adapter_is_asked_only_where_all_did() -> None:
    a, b = worker("a"), worker("b")
    made = await router(a, b)
    a.note_lacking("d")
    assert await names(made, "d") == ["b"]
    assert await names(made, "e") == ["a", "b"]
    assert [replica.name for replica in await made.newcomers("f", "d", [b])] == []
    assert [replica.name for replica in await made.newcomers("f", "e", [b])] == ["a"]
    b.note_lacking("d")
    assert await names(made, "d") == ["a", "b"]


async def test_requests_that_fail_together_ask_the_others_once() -> None:
    away, database = Counted(seconds=0.02), Database()
    away.error = WorkerUnavailable("powered off")
    dead, other = worker("a"), worker("b", away)
    made = await router(dead, other, database=database)
    away.asked = database.tried = 0
    found = await asyncio.gather(*(made.newcomers("f", None, [dead]) for _ in range(50)))
    assert found == [[]] * 50
    assert 1 <= away.asked <= 2
    assert 1 <= database.tried <= 2


async def test_a_worker_that_hangs_keeps_nobody_beyond_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleet.router.SEEK_SECONDS", 0.05)
    monkeypatch.setattr("fleet.router.SEEK_PAUSE", 0.01)
    monkeypatch.setattr("fleet.replica.PROBE_DEADLINE", 60.0)
    hanging = Counted()
    hanging.gate.clear()
    made = await router(worker("a", hanging), ask=False)
    async with asyncio.timeout(5):
        with pytest.raises(NoWorker):
            await names(made)
    hanging.gate.set()
    assert made._seeking is not None
    await made._seeking


async def test_a_worker_that_hangs_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleet.replica.PROBE_DEADLINE", 60.0)
    hanging = Counted()
    hanging.gate.clear()
    made = await router(worker("a", hanging), worker("b"), ask=False)
    async with asyncio.timeout(5):
        assert await names(made) == ["b"]
    hanging.gate.set()
    assert made._seeking is not None
    await made._seeking


async def test_a_request_that_fails_later_asks_again() -> None:
    dialect = Counted()
    dead, other = worker("a"), worker("b", dialect)
    made = await router(dead, other)
    asked = dialect.asked
    for turn in (1, 2):
        assert await made.newcomers("f", None, [dead]) == [other]
        assert dialect.asked == asked + turn


def test_a_prompt_longer_than_its_share_keeps_its_beginning() -> None:
    index = PrefixIndex(capacity=4)
    chain = [bytes([number]) for number in range(6)]
    index.add(chain, "acme")
    assert index.matched(chain, "acme") == 4
    index.add([], "globex")
    assert index.matched(chain[:1], "globex") == 0
