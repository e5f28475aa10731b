"""Declared prefixes are everybody's; nothing else becomes so. In pairs: what is shared, what beside it is not."""

from __future__ import annotations

import pytest

from inference.core.public_prefixes import MAX_PREFIXES, PUBLIC, PublicPrefixes
from inference.core.shares import ShareRules
from inference.errors import InvalidRequest
from tests.inference.core.engine import Engine
from tests.inference.core.fake_runner import FakeRunner

SYSTEM = list(range(1, 19))  # four full blocks of 4, and half a one


class Asker:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.asked = 0

    def __call__(self, namespace: str, prompt: list[int], adapter: str | None = None) -> int:
        """Tokens found in the cache."""
        self.asked += 1
        name = str(self.asked)
        sequence = self.engine.add(name, prompt, 2, tenant=namespace, adapter=adapter)
        self.engine.drain()
        assert self.engine.outputs[name] == self.engine.expected(prompt, adapter, 2)
        return sequence.cached_tokens


@pytest.fixture
def cached() -> Asker:
    return Asker(Engine())


def test_a_declared_prefix_is_computed_once_for_all(cached: Asker) -> None:
    cached.engine.declare("system", None, SYSTEM)
    assert cached("a", [*SYSTEM, 40]) == 0
    assert cached("b", [*SYSTEM, 41, 42]) == 16
    assert cached("c", [*SYSTEM[:9], 43]) == 8, "a part of it in full blocks is public as well"


def test_what_is_not_declared_is_not(cached: Asker) -> None:
    cached.engine.declare("system", None, SYSTEM)
    other = [30, *SYSTEM[1:]]
    assert cached("a", [*other, 40]) == 0
    assert cached("b", [*other, 40]) == 0
    assert cached("a", [*other, 40]) == 16


def test_nothing_beyond_it_is_shared(cached: Asker) -> None:
    cached.engine.declare("system", None, SYSTEM)
    long = [*SYSTEM, *range(20, 40)]
    assert cached("a", long) == 0
    assert cached("b", long) == 16
    assert cached("c", [*SYSTEM, *range(20, 22), 1]) == 16, "the block that the prefix ends in"
    assert (cached("a", long), cached("b", long)) == (36, 36)


def test_it_is_for_the_adapter_it_was_declared_for(cached: Asker) -> None:
    cached.engine.declare("system", "x", SYSTEM)
    assert cached("a", [*SYSTEM, 40], "x") == 0
    assert cached("b", [*SYSTEM, 40], "y") == 0
    assert cached("b", [*SYSTEM, 40]) == 0
    assert cached("b", [*SYSTEM, 40], "x") == 16


def test_the_same_tokens_later_in_a_prompt_are_private(cached: Asker) -> None:
    cached.engine.declare("system", None, SYSTEM)
    shifted = [9, 9, 9, 9, *SYSTEM]
    assert cached("a", [*SYSTEM, 40]) == 0
    assert cached("a", shifted) == 0
    assert cached("b", shifted) == 0
    assert cached("b", [*SYSTEM, 40]) == 16


def test_what_was_cached_before_the_declaration_stays_its_owners(cached: Asker) -> None:
    assert cached("a", [*SYSTEM, 40]) == 0
    cached.engine.declare("system", None, SYSTEM)
    assert cached("b", [*SYSTEM, 40]) == 0
    assert cached("a", [*SYSTEM, 40]) == 16


def test_withdrawn_it_is_nobodys_and_declared_again_everybodys(cached: Asker) -> None:
    cache = cached.engine.scheduler.cache
    cached.engine.declare("one", None, SYSTEM)
    cached.engine.declare("two", None, SYSTEM[:8])
    assert cached("a", [*SYSTEM, 40]) == 0
    cache.public.withdraw("one")
    assert cached("b", [*SYSTEM, 40]) == 8, "the shorter one is still declared"
    cache.public.withdraw("two")
    assert cached("c", [*SYSTEM, 40]) == 0
    with pytest.raises(InvalidRequest, match="no public prefix"):
        cache.public.withdraw("two")
    cached.engine.declare("one", None, SYSTEM)
    assert cached("d", [*SYSTEM, 40]) == 16


def test_public_blocks_are_on_no_tenants_account_and_have_a_floor() -> None:
    cached = Asker(Engine(FakeRunner(num_blocks=24), shares=ShareRules(8)))
    shares = cached.engine.scheduler.cache.pool.shares
    cached.engine.declare("system", None, SYSTEM)
    cached("a", [*SYSTEM, 40])
    assert (shares.held(PUBLIC), shares.held("a")) == (4, 1)
    for number in range(60):
        cached("flood", [number % 50, number % 7, *SYSTEM, *SYSTEM])
    assert cached("b", [*SYSTEM, 40]) == 16


def test_there_is_a_bound_and_what_is_declared_twice_counts_once() -> None:
    prefixes = PublicPrefixes()
    for number in range(MAX_PREFIXES):
        prefixes.declare(str(number), {b"key%d" % number: b"content"})
    prefixes.declare("0", {b"key0": b"content"})
    with pytest.raises(InvalidRequest, match=str(MAX_PREFIXES)):
        prefixes.declare("more", {})
    assert prefixes.holds(b"key0", b"content")
    assert not prefixes.holds(b"key0", b"another")
    prefixes.withdraw("0")
    assert not prefixes.holds(b"key0", b"content")
