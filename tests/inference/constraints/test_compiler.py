"""Whose constraint is compiled next, and what one tenant's costs another."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import cast

import pytest

from inference.constraints.checker import Checker
from inference.constraints.compiler import Compiler, Job
from inference.constraints.matcher import Matcher
from inference.constraints.vocabulary import Vocabulary
from inference.errors import Overloaded
from inference.protocol import Constraint, SamplingParams


class GatedChecker:
    """Takes as long as the test says: a check of ``slow…`` waits for the gate, one of ``hold…`` for the end."""

    def __init__(self) -> None:
        self.gate, self.end = threading.Event(), threading.Event()
        self.checked: list[str] = []
        self.passing: list[Overloaded] = []  # what checks of ``busy…`` raise

    def check(self, grammar: str) -> str | None:
        self.checked.append(grammar)
        if "slow" in grammar or "hold" in grammar:
            assert (self.gate if "slow" in grammar else self.end).wait(20)
        if self.passing and "busy" in grammar:
            raise self.passing.pop()
        return "not this one" if "bad" in grammar else None

    def close(self) -> None:
        pass


class House:
    def __init__(self, vocabulary: Vocabulary) -> None:
        self.checker = GatedChecker()
        self.woken = threading.Semaphore(0)
        self._ended: deque[Job] = deque()
        self.compiler = Compiler(vocabulary, lambda: cast(Checker, self.checker), wake=self.woken.release)

    def submit(self, source: str, tenant: str = "a", namespace: str | None = None) -> Job:
        matcher = Matcher(Constraint("regex", source), SamplingParams(), lambda _: None)
        job = Job(source, matcher, tenant, namespace or tenant)
        self.compiler.submit(job)
        return job

    def has_begun(self, count: int) -> None:
        """Waits until the checker was given so many altogether."""
        deadline = time.monotonic() + 10
        while len(self.checker.checked) < count:
            assert time.monotonic() < deadline, f"only {self.checker.checked} have begun"
            time.sleep(0.005)

    def next(self) -> str:
        """The waiter of the next job that ends."""
        assert self.woken.acquire(timeout=20)
        self._ended += self.compiler.poll()
        return str(self._ended.popleft().waiter)


@pytest.fixture
def house(vocabulary: Vocabulary) -> Iterator[House]:
    house = House(vocabulary)
    yield house
    house.checker.gate.set()
    house.checker.end.set()
    house.compiler.close()


def test_a_heavy_schema_delays_nobody_else(house: House) -> None:
    """One tenant's bombs, many at once, occupy one thread; another's constraints go through the other."""
    for number in range(5):
        house.submit(f"slow{number}", "bomber")
    for number in range(5):
        house.submit(f"fine{number}", "other")
        assert house.next() == f"fine{number}"
    house.checker.gate.set()
    assert [house.next() for _ in range(5)] == [f"slow{number}" for number in range(5)]


def test_the_tenant_that_used_least_is_next(house: House) -> None:
    house.submit("slow", "heavy")
    house.has_begun(1)
    time.sleep(0.05)  # what it costs
    house.checker.gate.set()
    assert house.next() == "slow"
    house.checker.gate.clear()
    house.submit("hold", "x")  # both threads are busy while the others arrive
    house.submit("slow b", "y")
    house.has_begun(3)
    house.submit("first", "heavy")
    house.submit("second", "light")
    house.checker.gate.set()
    assert [house.next() for _ in range(3)] == ["slow b", "second", "first"]


def test_a_verdict_is_remembered_in_its_namespace_only(house: House) -> None:
    for namespace in ("a", "a", "b", "b", "a"):
        house.submit("[a-c]", "tenant", namespace)
        house.next()
        house.submit("bad", "tenant", namespace)
        house.next()
    assert len(house.checker.checked) == 4, "each of two sources once in each of two namespaces"


def test_what_is_no_verdict_is_not_remembered(house: House) -> None:
    house.checker.passing.append(Overloaded("not now", 5.0))
    first, again, third = (house.submit("busy") for _ in range(3))
    for _ in range(3):
        house.next()
    assert isinstance(first.error, Overloaded)
    assert again.error is third.error is None
    assert len(house.checker.checked) == 2


def test_an_error_names_the_field_and_an_aborted_one_is_not_compiled(house: House) -> None:
    bad = house.submit("bad")
    house.next()
    assert str(bad.error) == "response_format: not this one"
    house.submit("slow", "a")
    gone = house.submit("gone", "a")
    gone.matcher.close()
    house.checker.gate.set()
    assert [house.next(), house.next()] == ["slow", "gone"]
    assert not any("gone" in grammar for grammar in house.checker.checked)


def test_aborted_ones_do_not_stay_in_the_queue(house: House) -> None:
    """Each holds its request; those that wait for a thread are otherwise as many as a client cares to abort."""
    house.submit("slow", "a")
    house.has_begun(1)
    other = house.submit("hold", "b")
    house.has_begun(2)
    waits = house.submit("waits", "a")
    for number in range(100):
        house.submit(f"gone{number}", "a").matcher.close()
        house.submit("elsewhere", "b")
        assert len(house.compiler._waiting["a"]) <= 2
    assert [house.next() for _ in range(99)] == [f"gone{number}" for number in range(99)], "each is handed back, once"
    other.matcher.close()  # a thread is at work on it: it ends there
    house.checker.gate.set()
    assert [house.next() for _ in range(3)] == ["slow", "waits", "gone99"]
    assert waits.error is None
    assert not any("gone" in grammar for grammar in house.checker.checked)
