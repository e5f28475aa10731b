"""Ways in which caches of other servers leaked, each as a pair: the stranger gets no hit, the owner does."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.core.prefix_cache import PrefixCache
from inference.core.shares import ShareRules
from inference.errors import Overloaded
from tests.inference.core.engine import Engine
from tests.inference.core.fake_runner import FakeRunner

PROMPT = list(range(1, 18))


class Asker:
    """Asks an engine the same prompt under different names and says how much of it was cached."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.asked = 0

    def __call__(self, namespace: str, adapter: str | None = None, prompt: list[int] = PROMPT) -> int:
        self.asked += 1
        name = str(self.asked)
        sequence = self.engine.add(name, prompt, 2, namespace=namespace, adapter=adapter)
        self.engine.drain()
        assert self.engine.outputs[name] == self.engine.expected(prompt, adapter, 2)
        return sequence.cached_tokens


@pytest.fixture
def cached() -> Asker:
    return Asker(Engine())


def test_adapters_do_not_share_what_they_computed(cached: Asker) -> None:
    assert cached("a", "x") == 0
    assert cached("a", "y") == 0
    assert cached("a") == 0
    assert [cached("a", adapter) for adapter in ("x", "y", None)] == [16, 16, 16]


def test_a_namespace_named_like_an_adapter_is_not_the_adapter(cached: Asker) -> None:
    assert cached("a", "x") == 0
    assert cached("x") == 0
    assert cached("x", "a") == 0
    assert cached("a", "x") == 16


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("bc", "a"), ("c", "ab")),
        (("xa", None), ("a", "x")),
        (("a\0", "x"), ("a", "x\0")),
        (("a" + (1).to_bytes(8, "little").decode() + "x", None), ("a", "x")),
        (("A", "x"), ("a", "x")),
        (("é", None), ("e\u0301", None)),
    ],
)
def test_parts_that_run_into_each_other_are_told_apart(
    cached: Asker, one: tuple[str, str | None], other: tuple[str, str | None]
) -> None:
    assert cached(*one) == 0
    assert cached(*other) == 0
    assert (cached(*one), cached(*other)) == (16, 16)


Part = st.text(st.sampled_from("ab\0\x01\x08é"), max_size=4)
Root = st.tuples(Part, Part, Part.filter(bool) | st.none(), Part)


@given(Root, Root)
def test_roots_are_equal_only_for_equal_parts(one: Any, other: Any) -> None:
    def root(base: str, kv_dtype: str, adapter: str | None, namespace: str) -> bytes:
        return PrefixCache(1, 4, base=base, kv_dtype=kv_dtype).root(adapter, namespace)

    assert (root(*one) == root(*other)) == (one == other)


def test_tokens_are_compared_again_on_a_hit(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a hash that gives every block the same key."""
    real = hashlib.sha256

    def broken(data: bytes = b"") -> Any:
        return real(b"the same") if data else real()

    monkeypatch.setattr("inference.core.prefix_cache.hashlib.sha256", broken)
    cached = Asker(Engine())
    assert cached("a", prompt=[1, 1, 1, 1, 5]) == 0
    assert cached("a", prompt=[2, 2, 2, 2, 5]) == 0
    assert cached("b", prompt=[1, 1, 1, 1, 5]) == 0
    assert cached("a", prompt=[1, 1, 1, 1, 5]) == 4


def test_an_adapter_that_was_unloaded_and_came_back_finds_its_own(cached: Asker) -> None:
    """The digest is the identity: the same content may be reused, a new content has another digest."""
    assert cached("a", "x") == 0
    cached.engine.residency.unload("x")
    assert cached("a", "x-retrained") == 0
    assert cached("a", "x") == 16


def test_what_a_preempted_request_left_is_found_by_its_owner_only() -> None:
    """There is one tier of KV; nothing but the chain's key leads from tokens to a block."""
    engine = Engine(FakeRunner(num_blocks=10, eos=None))
    same = [7] * 9
    engine.add("first", same, 20, tenant="a")
    engine.step()
    second = engine.add("second", same, 20, tenant="b")
    while not engine.scheduler.preemptions:
        engine.step()
    assert second.state.value == "waiting"
    engine.drain()  # every read is checked against who wrote the block
    assert second.cached_tokens == 0
    assert engine.outputs["second"] == engine.outputs["first"] == engine.expected(same, None, 20)
    cached = Asker(engine)
    assert cached("b", prompt=[*same, 1]) == 8
    assert cached("c", prompt=[*same, 1]) == 0


def test_a_flood_of_evictions_leaves_the_floor() -> None:
    def after_a_flood(reserved: int) -> tuple[int, int]:
        cached = Asker(Engine(FakeRunner(num_blocks=24), shares=ShareRules(reserved)))
        assert cached("a") == 0
        for number in range(60):
            cached("flood", prompt=[number % 50, number % 7, *PROMPT, *PROMPT])
        last = [59 % 50, 59 % 7, *PROMPT, *PROMPT]
        return cached("a"), cached("flood", prompt=last)

    assert after_a_flood(8) == (16, 32)
    # A request that needs more than everybody else's free part: without floors it gets all.
    cached = Asker(Engine(FakeRunner(num_blocks=16), shares=ShareRules(0)))
    cached("a")
    cached("flood", prompt=[3] * 60)
    assert cached("a") == 0
    cached = Asker(Engine(FakeRunner(num_blocks=24), shares=ShareRules(8)))
    cached("a")
    cached("flood", prompt=[3] * 60)
    assert cached("a") == 16


@pytest.mark.parametrize("seed", range(4))
def test_cached_tokens_are_never_more_than_the_own_namespace_had(seed: int) -> None:
    """Tenants that ask the same prompts all the time, under pressure, beside an account kept by the test."""
    rng = random.Random(seed)
    engine = Engine(FakeRunner(num_blocks=rng.choice([20, 64]), eos=None), shares=ShareRules(4), max_waiting=30)
    prompts = [[rng.randrange(1, 5) for _ in range(rng.randrange(4, 30))] for _ in range(6)]
    had: dict[tuple[str, str | None], set[tuple[int, ...]]] = {}
    live: dict[str, Any] = {}
    hits = 0
    for number in range(3000):
        if rng.random() < 0.3:
            tenant, adapter = rng.choice("abcd"), rng.choice([None, "x"])
            try:
                live[str(number)] = engine.add(
                    str(number), rng.choice(prompts), rng.randrange(1, 9), tenant=tenant, adapter=adapter
                )
            except Overloaded:
                continue
        while engine.executor.jobs:
            engine.executor.finish()
        before = {name for name, sequence in live.items() if sequence.admitted}
        engine.step()
        for name, sequence in live.items():
            own = had.setdefault((sequence.namespace, sequence.adapter), set())
            if sequence.admitted and name not in before:
                longest = max((_common(sequence.prompt, tokens) for tokens in own), default=0)
                assert sequence.cached_tokens <= longest
                hits += sequence.cached_tokens > 0
        for name, sequence in live.items():
            computed = len(sequence.tokens) - 1 if name in engine.done else sequence.computed
            had[sequence.namespace, sequence.adapter].add(tuple(sequence.tokens[:computed]))
        live = {name: sequence for name, sequence in live.items() if name not in engine.done}
        if number % 100 == 0:
            engine.scheduler.cache.check()
    engine.drain()
    assert hits > 30


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    count = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        count += 1
    return count
