"""The scheduler under random traffic, with a runner that knows what every block should hold."""

from __future__ import annotations

from typing import Any

import pytest

from inference.errors import AdapterNotFound, InvalidRequest, Overloaded
from tests.inference.core.engine import Engine
from tests.inference.core.fake_runner import FakeRunner


def test_requests_join_and_leave_between_steps() -> None:
    engine = Engine(FakeRunner(eos=None))
    engine.add("long", [1, 2, 3], 30)
    for _ in range(5):
        engine.step()
    engine.add("short", [4, 5], 2)
    rows = [engine.step() for _ in range(3)]
    assert rows == [2, 2, 1]
    assert "short" in engine.done
    assert "long" not in engine.done
    engine.drain()


def test_long_prompts_are_chunked_beside_running_decodes() -> None:
    engine = Engine(FakeRunner(eos=None), token_budget=8, max_running=8)
    engine.add("first", [1], 20)
    engine.step()
    engine.add("prompt", list(range(1, 30)), 4)
    for _ in range(3):
        before = len(engine.outputs["first"])
        engine.step()
        assert len(engine.outputs["first"]) == before + 1, "a decode waited for a prompt"
    engine.drain()


def test_blocks_running_out_preempts_the_last_and_changes_no_output() -> None:
    engine = Engine(FakeRunner(num_blocks=10, eos=None))
    prompts = {f"r{number}": [number + 1] * 5 for number in range(4)}
    for name, prompt in prompts.items():
        engine.add(name, prompt, 20)
    engine.drain()
    assert engine.scheduler.preemptions > 0
    for name, prompt in prompts.items():
        assert engine.outputs[name] == engine.expected(prompt, None, 20)


def test_prefixes_are_shared_within_a_namespace_and_never_across() -> None:
    prompt = list(range(1, 18))
    engine = Engine()

    def cached(name: str, **values: Any) -> int:
        sequence = engine.add(name, prompt, 2, **values)
        engine.drain()
        return sequence.cached_tokens

    assert cached("cold") == 0
    assert cached("same") == 16
    assert cached("other namespace", namespace="b") == 0
    assert cached("other adapter", adapter="x") == 0
    assert cached("the adapter again", adapter="x") == 16
    assert cached("a namespace named like the adapter", namespace="x") == 0


def test_the_last_token_is_always_computed() -> None:
    engine = Engine()
    engine.add("cold", [1] * 16, 1)
    engine.drain()
    warm = engine.add("warm", [1] * 16, 1)
    engine.drain()
    assert warm.cached_tokens == 12
    assert engine.outputs["warm"] == engine.outputs["cold"]


def test_tenants_share_by_weight() -> None:
    engine = Engine(FakeRunner(eos=None, num_blocks=256), max_running=2, max_waiting=2000, max_waiting_per_tenant=1000)
    for number in range(300):
        for tenant, weight in (("greedy", 1), ("paying", 3)):
            engine.add(f"{tenant}{number}", [1, 2, 3], 4, tenant=tenant, weight=weight)
    for _ in range(200):
        engine.step()
    served = {tenant: sum(name.startswith(tenant) for name in engine.done) for tenant in ("greedy", "paying")}
    assert 2.5 < served["paying"] / served["greedy"] < 3.5


def test_a_newcomer_does_not_wait_behind_a_flood_and_idleness_earns_nothing() -> None:
    engine = Engine(FakeRunner(eos=None, num_blocks=256), max_running=1)
    for number in range(100):
        engine.add(f"flood{number}", [1, 2, 3], 4, tenant="flood")
    for _ in range(40):
        engine.step()
    for number in range(20):
        engine.add(f"new{number}", [1, 2, 3], 4, tenant="new")
    before = set(engine.done)
    while sum(name.startswith("new") for name in engine.done) < 10:
        engine.step()
    flood_meanwhile = sum(name.startswith("flood") for name in set(engine.done) - before)
    assert 8 <= flood_meanwhile <= 12


def test_priority_goes_before_fairness() -> None:
    engine = Engine(max_running=1)
    engine.add("normal", [1], 4, tenant="a")
    engine.add("later", [1], 4, tenant="b", priority=1)
    engine.add("urgent", [1], 4, tenant="a", priority=-1)
    engine.drain()
    assert list(engine.done) == ["urgent", "normal", "later"]


def test_queues_are_bounded_overall_and_per_tenant() -> None:
    engine = Engine(max_waiting=5, max_waiting_per_tenant=3)
    for number in range(3):
        engine.add(f"a{number}", [1])
    with pytest.raises(Overloaded, match="tenant"):
        engine.add("a3", [1])
    engine.add("b0", [1], tenant="b")
    engine.add("b1", [1], tenant="b")
    with pytest.raises(Overloaded, match="worker"):
        engine.add("b2", [1], tenant="b")
    engine.drain()
    assert not any(end.error for end in engine.done.values())
    engine.add("again", [1])
    engine.drain()


def test_a_full_queue_makes_place_for_whom_it_serves_least() -> None:
    engine = Engine(max_waiting=4, max_waiting_per_tenant=4)
    for number in range(4):
        engine.add(f"a{number}", [1], 4 + number % 2)
    engine.add("b0", [1], tenant="b")  # takes the place of the last of those with the longest output
    engine.add("b1", [1], tenant="b")
    with pytest.raises(Overloaded):
        engine.add("b2", [1], tenant="b")  # would be the one with most
    engine.add("urgent", [1], 9, tenant="a", priority=-1)
    with pytest.raises(Overloaded):
        engine.add("later", [1], 1, tenant="c", priority=1)
    engine.drain()
    refused = [name for name, end in engine.done.items() if isinstance(end.error, Overloaded)]
    assert refused == ["a3", "a1", "b1"]
    assert next(iter(engine.outputs)) == "urgent"


def test_a_full_queue_of_one_tenant_makes_place_for_its_more_urgent() -> None:
    engine = Engine(max_waiting=9, max_waiting_per_tenant=2)
    engine.add("a0", [1], priority=2)
    engine.add("a1", [1], priority=1)
    engine.add("other", [1], tenant="b", priority=5)
    engine.add("a2", [1])
    with pytest.raises(Overloaded, match="tenant"):
        engine.add("a3", [1], priority=1)
    engine.drain()
    assert [name for name, end in engine.done.items() if end.error] == ["a0"]


def test_what_can_never_fit_is_refused_at_once() -> None:
    engine = Engine(FakeRunner(num_blocks=4, eos=None))
    engine.add("exactly", [1] * 10, 7)  # 16 positions: the 17th token is never computed
    with pytest.raises(InvalidRequest, match="KV cache"):
        engine.add("more", [1] * 10, 8)
    with pytest.raises(InvalidRequest, match="exceed 64"):
        engine.add("long", [1] * 60, 5)
    with pytest.raises(InvalidRequest, match="empty"):
        engine.add("empty", [])
    engine.drain()
    assert len(engine.outputs["exactly"]) == 7


def test_a_failed_load_fails_only_its_requests() -> None:
    engine = Engine(broken=frozenset({"bad"}))
    engine.add("bad1", [1], adapter="bad")
    engine.add("bad2", [1], adapter="bad")
    engine.add("good", [1], adapter="x")
    engine.add("base", [1])
    engine.drain()
    assert {name for name, end in engine.done.items() if end.error} == {"bad1", "bad2"}


def test_a_loading_adapter_holds_nobody_else_up() -> None:
    engine = Engine()
    engine.add("waits", [1], adapter="x")
    engine.add("goes", [1], 2)
    while "goes" not in engine.done:
        engine.step()
    assert "waits" not in engine.outputs
    engine.drain()


def test_a_cold_adapter_gets_a_slot_although_hot_ones_never_rest() -> None:
    engine = Engine(FakeRunner(num_slots=1, eos=None), max_waiting=5000, max_waiting_per_tenant=5000)
    engine.add("cold", [1], 2, adapter="cold", tenant="b")
    engine.scheduler.abort("cold")
    for number in range(4):
        engine.add(f"hot{number}", [1], 8, adapter="hot")
    for number in range(4, 2000):
        if engine.executor.jobs:
            engine.executor.finish()
        if number == 50:
            engine.add("cold", [1], 2, adapter="cold", tenant="b")
        engine.add(f"hot{number}", [1], 8, adapter="hot")
        engine.step()
        if "cold" in engine.done:
            break
    assert "cold" in engine.done
    assert engine.scheduler.live > 0
    engine.drain(100_000)


def test_aborting_what_waits_for_an_adapter_lets_go_of_it() -> None:
    engine = Engine(FakeRunner(num_slots=1))
    engine.add("x", [1], 30, adapter="x")
    engine.step()
    engine.add("y", [1], adapter="y")
    engine.step()
    engine.scheduler.abort("x")
    engine.scheduler.abort("y")
    assert engine.scheduler.abort("y") is None
    engine.drain()


def test_unloading_waits_for_those_who_use_it() -> None:
    engine = Engine(FakeRunner(eos=None))
    engine.add("user", [1], 10, adapter="x")
    engine.step()
    engine.executor.finish()
    engine.step()
    engine.residency.unload("x")
    with pytest.raises(AdapterNotFound):
        engine.residency.unload("x")
    assert engine.runner.slots
    engine.drain()
    assert not engine.runner.slots
    assert engine.outputs["user"] == engine.expected([1], "x", 10)


def test_an_eviction_flood_keeps_the_accounts() -> None:
    engine = Engine(FakeRunner(num_blocks=16))
    for number in range(50):
        engine.add(str(number), [number % 50] * 20, 1, namespace=f"n{number}")
        engine.drain()
        engine.scheduler.cache.check()
