"""Tenants beside each other, in simulated time."""

from __future__ import annotations

import copy
import random

import pytest

from inference.core.fairness import Fairness
from tests.inference.core.engine import Engine
from tests.inference.core.fake_runner import FakeRunner
from tests.inference.core.simulation import Arrival, Clocked, TimedRunner, Times, quantile


def offered(rng: random.Random, tenant: str, rate: float, seconds: float, prompt: int, output: int) -> list[Arrival]:
    """Requests at random times, ``rate`` a second; prompts within 30 % of a length."""
    arrivals, at = [], rng.expovariate(rate)
    while at < seconds:
        length = int(prompt * rng.uniform(0.7, 1.3))
        arrivals.append(Arrival(at, tenant, [rng.randrange(1, 50) for _ in range(length)], output))
        at += rng.expovariate(rate)
    return arrivals


def served(arrivals: list[Arrival], places: int) -> list[Times]:
    runner = TimedRunner(num_blocks=640, block_size=16, max_model_len=2048, eos=None)
    engine = Clocked(runner, max_running=places, token_budget=512, max_waiting=1024, max_waiting_per_tenant=256)
    times = engine.play(copy.deepcopy(arrivals))
    engine.scheduler.check_idle()
    return times


def p95(times: list[Times]) -> float:
    return quantile([one.first for one in times if one.arrival.tenant == "light"], 0.95)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("light_rate", "prompt", "output", "bound"),
    # At 0.3 a second the light tenant's own requests meet each other more often where all steps are longer.
    [(0.15, 70, 64, 1.5), (0.15, 400, 64, 1.5), (0.15, 70, 300, 1.5), (0.3, 70, 64, 1.6)],
)
def test_twenty_times_the_traffic_costs_a_light_tenant_half_its_wait_again(
    light_rate: float, prompt: int, output: int, bound: float
) -> None:
    """Against running alone on half the places."""
    rng, seconds = random.Random(1), 400.0
    light = offered(rng, "light", light_rate, seconds, 70, 64)
    heavy = offered(rng, "heavy", 20 * light_rate, seconds, prompt, output)
    alone, mixed = served(light, 8), served(light + heavy, 16)
    print(f"p95 alone {p95(alone):.3f} s, beside {p95(mixed):.3f} s: {p95(mixed) / p95(alone):.2f}")
    assert not any(one.refused for one in mixed if one.arrival.tenant == "light")
    assert p95(mixed) <= bound * p95(alone)


def test_a_light_tenant_needs_no_place_to_come_free() -> None:
    engine = Engine(FakeRunner(eos=None, num_blocks=256), max_running=4, token_budget=64)
    for number in range(8):
        engine.add(f"heavy{number}", [number], 40, tenant="heavy")
    for _ in range(3):
        engine.step()
    engine.add("light", [9], 4, tenant="light")
    engine.step()
    assert len(engine.outputs["light"]) == 1
    running = [sequence.tenant for sequence in engine.scheduler.running]
    assert sorted(running) == ["heavy", "heavy", "heavy", "light"]
    engine.drain()
    for number in range(8):
        assert engine.outputs[f"heavy{number}"] == engine.expected([number], None, 40)


def test_two_who_have_their_share_take_nothing_from_each_other() -> None:
    engine = Engine(FakeRunner(eos=None, num_blocks=256), max_running=4, token_budget=64)
    for number in range(20):
        for tenant in "ab":
            engine.add(f"{tenant}{number}", [number], 30, tenant=tenant)
    engine.drain()
    assert engine.scheduler.preemptions == 0


def test_the_urgent_take_the_places_of_those_who_can_wait() -> None:
    engine = Engine(FakeRunner(eos=None, num_blocks=256), max_running=2, token_budget=64)
    for number in range(4):
        engine.add(f"batch{number}", [number], 30, priority=5)
    engine.step()
    engine.add("urgent", [9], 2)
    engine.step()
    assert len(engine.outputs["urgent"]) == 1
    engine.drain()


def test_blocks_run_out_first_for_the_low_priority_and_the_long_output() -> None:
    engine = Engine(FakeRunner(eos=None, num_blocks=11), token_budget=64)
    low = engine.add("low", [1] * 8, 30, priority=1)
    engine.add("short", [2] * 8, 16)
    long = engine.add("long", [3] * 8, 30)
    while not (low.preempted and long.preempted) and engine.scheduler.live:
        engine.step()
        assert low.preempted or not long.preempted, "the low priority had to go first"
    assert "short" not in engine.done or long.preempted
    engine.drain()
    for name, prompt, count in (("low", 1, 30), ("short", 2, 16), ("long", 3, 30)):
        assert engine.outputs[name] == engine.expected([prompt] * 8, None, count)


def test_what_was_used_lately_fades_and_weights_divide_it() -> None:
    fairness = Fairness()
    fairness.tick(0.0)
    for tenant, weight in (("a", 1), ("b", 4)):
        fairness.join(tenant, weight)
        fairness.charge_output(tenant, weight, 100)
    assert fairness.recent("a") == 4 * fairness.recent("b")
    fairness.tick(20.0)  # two half-lives
    fairness.charge_output("b", 4, 120)
    assert fairness.leader() == "a"
    fairness.tick(10_000.0)
    assert fairness.leader() == "a"
    assert fairness.share("b") == 0.8
