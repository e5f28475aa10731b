"""What a step's decisions cost when a thousand tenants wait, and that the short way decides as the long one would."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from inference.core.batch import Batch
from inference.core.fairness import Fairness
from inference.core.ranking import Ranking
from inference.core.sequence import Sequence
from inference.core.victims import Holdings
from inference.core.waiting import WaitingQueue
from inference.errors import Overloaded
from tests.inference.core.engine import Engine
from tests.inference.core.fake_runner import FakeRunner


def work(of: Callable[[], object]) -> int:
    """Python instructions that ``of`` executes."""
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        of()
    finally:
        sys.settrace(before)
    return count


def crowd(tenants: int, *, running: int = 16, weights: bool = False) -> Engine:
    """One tenant holds most places; of the others, each with one request, a few have run and the rest wait."""
    limits: dict[str, Any] = {
        "max_running": running,
        "token_budget": 512,
        "max_waiting": 10_000,
        "max_waiting_per_tenant": 1000,
    }
    engine = Engine(FakeRunner(num_blocks=20_000, eos=None), **limits)
    for number in range(running):
        engine.add(f"early{number}", [1, 2, 3], 60, tenant="early" if number % 2 else f"early{number}")
    for _ in range(3):
        engine.step()
    for number in range(tenants):
        weight = 1 + number % 7 if weights else 1
        engine.add(f"late{number}", [4, 5, 6], 60, tenant=f"late{number}", weight=weight)
    return engine


def cost(engine: Engine) -> int:
    """The most that one of a dozen steps' decisions takes."""
    costs = []
    for _ in range(12):
        engine.now += 0.01
        batches: list[Batch] = []

        def decide(batches: list[Batch] = batches) -> None:
            batches.append(engine.scheduler.schedule())

        costs.append(work(decide))
        engine.scheduler.postprocess(batches[0], engine.runner.run(batches[0].rows))
    return max(costs)


@pytest.mark.parametrize("weights", [False, True])
def test_a_thousand_waiting_tenants_cost_a_step_no_more_than_thirty(weights: bool) -> None:
    few, many = cost(crowd(30, weights=weights)), cost(crowd(1000, weights=weights))
    print(f"instructions of the dearest step: 30 tenants {few}, 1,000 tenants {many}")
    assert many < 2 * few


def test_a_thousand_tenants_that_come_and_go_cost_each_a_little() -> None:
    def joining(tenants: int) -> int:
        engine = crowd(tenants)

        def one() -> None:
            engine.add("new", [1], 4, tenant="new")
            engine.scheduler.abort("new")

        return max(work(one) for _ in range(20))

    assert joining(1000) < 2 * joining(30)


class AllLookedAt(WaitingQueue):
    """The long way: every tenant that waits is compared with every other, whoever may be hopeful."""

    def next(self, among: Any = None) -> Sequence | None:
        self._catch_up()
        tenants = [tenant for tenant in self._heaps if tenant not in self._passed]
        return min((self._heaps[tenant][0][2] for tenant in tenants), key=self._key, default=None)

    def _key(self, sequence: Sequence) -> tuple[int, float, int]:
        return (sequence.priority, self._fairness.committed(sequence.tenant), sequence.arrival)


@pytest.mark.parametrize("seed", range(12))
def test_the_short_way_decides_as_the_long_one(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def traces() -> list[list[tuple[str, int, int, int]]]:
        rng = random.Random(seed)
        places, priorities, tenants = rng.choice([3, 8, 12]), rng.choice([1, 3]), rng.choice([4, 12, 40])
        runner = FakeRunner(num_blocks=rng.choice([24, 200]), eos=None, num_slots=2)
        engine = Engine(runner, max_running=places, token_budget=24, max_waiting=60, max_waiting_per_tenant=9)
        names: list[str] = []
        for number in range(700):
            for _ in range(rng.choice([0, 0, 1, 2])):
                tenant = min(rng.randrange(tenants), rng.randrange(tenants))
                names.append(f"{number}-{len(names)}")
                values: dict[str, Any] = {
                    "tenant": str(tenant),
                    "weight": 1 + tenant % 5 if seed % 2 else rng.choice([1, 9]),
                    "priority": rng.randrange(priorities),
                    "adapter": rng.choice([None, None, None, "x", "y", "z"]),
                }
                prompt, length = [rng.randrange(50) for _ in range(rng.randrange(1, 20))], rng.randrange(1, 30)
                try:
                    engine.add(names[-1], prompt, length, **values)
                except Overloaded:
                    names.pop()
            if names and rng.random() < 0.1:
                engine.scheduler.abort(rng.choice(names[-30:]))
            while engine.executor.jobs and rng.random() < 0.5:
                engine.executor.finish()
            engine.step()
        assert engine.scheduler.preemptions
        engine.drain()
        return engine.trace

    short = traces()
    monkeypatch.setattr("inference.core.scheduler.WaitingQueue", AllLookedAt)
    monkeypatch.setattr(Holdings, "hopeful", lambda self, refused: None)
    assert traces() == short


def test_the_least_is_found_whatever_grew_and_what_is_said_to_have_fallen() -> None:
    rng = random.Random(0)
    keys: dict[str, int] = {}
    ranking = Ranking(lambda name: keys[name])
    for _ in range(5000):
        name = str(rng.randrange(30))
        change = rng.random()
        if change < 0.4 and name in keys:
            keys[name] += rng.randrange(5)
        elif change < 0.8:
            keys[name] = rng.randrange(100)
            ranking.put(name)
        elif keys.pop(name, None) is not None:
            ranking.drop(name)
        least = ranking.least()
        assert (least is None) == (not keys)
        assert least is None or keys[least] == min(keys.values())
    assert len(ranking._heap) <= 4 * 30 + 64


def test_the_running_numbers_are_those_that_adding_up_gives() -> None:
    rng, fairness = random.Random(1), Fairness()
    live: list[tuple[str, int]] = []
    for number in range(3000):
        fairness.tick(number * 0.5)
        if live and rng.random() < 0.5:
            fairness.leave(live.pop(rng.randrange(len(live)))[0])
        else:
            live.append((str(rng.randrange(20)), rng.randrange(1, 6)))
            fairness.join(*live[-1])
        for tenant, weight in live[-3:]:
            fairness.charge_output(tenant, weight, rng.randrange(4))
        weights = fairness._weights
        assert set(weights) == {tenant for tenant, _ in live}
        for tenant, weight in weights.items():
            assert fairness.share(tenant) == weight / sum(weights.values())
        least = rng.choice([0.05, 0.2, 0.5])
        assert set(fairness.with_share(least)) == {tenant for tenant in weights if fairness.share(tenant) >= least}
        rivals = {*fairness._left, *weights}
        leader = fairness.leader()
        assert (leader is None) == (len(rivals) < 2)
        assert leader is None or fairness.recent(leader) == min(map(fairness.recent, rivals))
    for tenant, _ in live:
        fairness.leave(tenant)
    fairness.check_idle()
