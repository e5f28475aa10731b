"""Many adapters through few slots, and the memory between the store and the device."""

from __future__ import annotations

import bisect
import itertools
import random
import threading
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from inference.core.host_tier import MAX_PREFETCHES, HostTier
from inference.errors import AdapterNotFound, Overloaded
from tests.inference.core.engine import Engine, LateExecutor
from tests.inference.core.fake_runner import FakeRunner
from tests.inference.core.simulation import STEP_SECONDS, TOKEN_SECONDS, Arrival, Clocked, TimedRunner, quantile

ADAPTERS, SLOTS, HEAD, TAIL = 1000, 16, 16, 100
LOAD_SECONDS = 0.003


def zipf_traffic(rng: random.Random, rate: float, seconds: float) -> list[Arrival]:
    weights = list(itertools.accumulate(1 / rank for rank in range(1, ADAPTERS + 1)))
    arrivals, at = [], 0.0
    while at < seconds:
        rank = bisect.bisect(weights, rng.random() * weights[-1])
        prompt = [rng.randrange(1, 50) for _ in range(20)]
        arrivals.append(Arrival(at, f"tenant{rank % 50}", prompt, 16, adapter=f"{rank:04d}"))
        at += rng.expovariate(rate)
    return arrivals


@pytest.mark.parametrize("rate", [4.0, 7.0])
def test_a_thousand_adapters_share_sixteen_slots(rate: float) -> None:
    """7 requests a second are about as many as the simulated device can serve."""
    runner = TimedRunner(num_blocks=1000, block_size=16, num_slots=SLOTS, max_model_len=512, eos=None)
    engine = Clocked(
        runner, read_seconds=0.01, load_seconds=LOAD_SECONDS, max_running=64, token_budget=512, max_waiting=4000
    )
    times = engine.play(zipf_traffic(random.Random(1), rate, 120.0))
    engine.scheduler.check_idle()
    assert not any(one.refused for one in times)
    head = [one.first for one in times if int(one.arrival.adapter or 0) < HEAD]
    tail = [one.first for one in times if int(one.arrival.adapter or 0) >= TAIL]
    print(f"rate {rate}: head p95 {quantile(head, 0.95):.2f} max {max(head):.2f}, tail p95", end=" ")
    print(f"{quantile(tail, 0.95):.2f} max {max(tail):.2f}, {engine.loads / len(times):.2f} loads a request")
    assert max(tail) <= 2 * max(head) + 1.0
    if rate < 7:
        assert quantile(tail, 0.95) < 1.0


def test_a_load_costs_the_running_at_most_its_own_time_in_one_step() -> None:
    runner = TimedRunner(num_blocks=64, block_size=16, num_slots=8, max_model_len=512, eos=None)
    engine = Clocked(runner, load_seconds=0.02, max_running=16, token_budget=512)
    arrivals = [Arrival(0.0, "a", [1], 60)]
    arrivals += [Arrival(0.5, "a", [2], 2, adapter=f"{number}") for number in range(8)]  # eight loads at once
    (steady, *_) = engine.play(arrivals)
    tokens_of_largest_step = 1 + 8
    bound = STEP_SECONDS + TOKEN_SECONDS * tokens_of_largest_step + 0.02
    assert engine.loads == 8
    assert max(steady.gaps) <= bound + 1e-9


def test_a_load_and_the_prompt_that_waited_for_it_are_not_one_gap() -> None:
    runner = TimedRunner(num_blocks=64, block_size=16, num_slots=8, max_model_len=512, eos=None)
    engine = Clocked(runner, load_seconds=0.02, max_running=16, token_budget=512)
    arrivals = [Arrival(0.0, "a", [1], 60), Arrival(0.5, "b", [2] * 100, 2, adapter="cold")]
    steady, cold = engine.play(arrivals)
    assert engine.loads == 1
    prompt_step = STEP_SECONDS + TOKEN_SECONDS * (1 + 100)
    assert max(steady.gaps) == pytest.approx(prompt_step), "the prompt's, without the load"
    assert sum(gap == pytest.approx(STEP_SECONDS + TOKEN_SECONDS + 0.02) for gap in steady.gaps) == 1, "the load's"
    assert cold.first is not None


def test_a_tenant_with_many_cold_adapters_does_not_hold_up_anothers() -> None:
    engine = Engine(FakeRunner(num_slots=1, eos=None), max_running=8)
    for number in range(20):
        engine.add(f"many{number}", [1], 4, tenant="many", adapter=f"many{number}")
    for _ in range(3):
        engine.step()
    engine.add("one", [1], 4, tenant="one", adapter="one")
    while "one" not in engine.done:
        while engine.executor.jobs:
            engine.executor.finish()
        engine.step()
    assert len(engine.done) <= 4
    engine.drain()


class SmallDevice(FakeRunner):
    """Of slots it has more than memory. :param room: adapters that it holds."""

    def __init__(self, room: int) -> None:
        super().__init__(num_slots=4, eos=None)
        self.room = room

    def load_adapter(self, slot: int, adapter: object) -> None:
        super().load_adapter(slot, adapter)  # as much of it as there was memory for
        if len(self.slots) > self.room:
            raise Overloaded("The device has no memory for this adapter")


def serve(engine: Engine, *names: str) -> None:
    while not all(name in engine.done for name in names):
        while engine.executor.jobs:
            engine.executor.finish()
        engine.step()


def test_where_memory_ends_before_slots_do_who_is_not_used_leaves_it() -> None:
    runner = SmallDevice(2)
    engine = Engine(runner)
    for number in (0, 1, 0, 2, 0, 3, 1):
        name = f"request {len(engine.done)}"
        engine.add(name, [1], 2, adapter=str(number))
        serve(engine, name)
        assert engine.done[name].error is None
    assert sorted(runner.slots.values()) == ["1", "3"]
    assert engine.residency.evictions == 3
    engine.drain()
    engine.scheduler.check_idle()


def test_a_device_full_of_adapters_in_use_refuses_one_more_and_nothing_else() -> None:
    runner = SmallDevice(1)
    engine = Engine(runner)
    engine.add("long", [1], 30, adapter="0")
    for _ in range(4):
        if engine.executor.jobs:
            engine.executor.finish()
        engine.step()
    engine.add("refused", [1], 2, adapter="1")
    serve(engine, "refused")
    assert isinstance(engine.done["refused"].error, Overloaded)
    assert list(runner.slots.values()) == ["0"]
    serve(engine, "long")
    assert engine.done["long"].finish == "length"
    engine.add("again", [1], 2, adapter="1")
    serve(engine, "again")
    assert engine.done["again"].error is None
    engine.drain()
    engine.scheduler.check_idle()


def tier(capacity: int, read: Any = None) -> tuple[HostTier, LateExecutor]:
    executor = LateExecutor()
    return HostTier(read or (lambda digest: f"adapter {digest}"), lambda adapter: 10, capacity, executor), executor


def fetched(host: HostTier, executor: LateExecutor, digest: str) -> object:
    future = host.fetch(digest)
    while executor.jobs:
        executor.finish()
    host.check()
    return future.result(timeout=0)


def test_what_was_read_is_not_read_again_until_it_had_to_go() -> None:
    host, executor = tier(20)
    for digest in ("a", "b", "a", "c", "a", "b"):  # c pushes b out, then b pushes c out
        assert fetched(host, executor, digest) == f"adapter {digest}"
    assert (host.reads, host.hits, len(host), host.num_bytes) == (4, 2, 2, 20)
    assert fetched(*tier(5), "larger than all") == "adapter larger than all"


def test_one_that_is_larger_than_the_tier_costs_no_other_its_place() -> None:
    sizes = {"one tenant's": 10, "another's": 20, "a third's": 30, "huge": 61, "grows": 0}
    executor = LateExecutor()
    host = HostTier(lambda digest: digest, lambda adapter: sizes[str(adapter)], 60, executor)
    small = ["one tenant's", "another's", "a third's"]
    for digest in [*small, "huge", "huge", *small]:
        assert fetched(host, executor, digest) == digest
    assert (host.reads, host.hits, len(host), host.num_bytes) == (3 + 2, 3, 3, 60)
    host._kept["grows"] = ("grows", 0)  # what a second read of a larger one replaces
    sizes["grows"] = 61
    host._start("grows")
    executor.finish()
    host.check()
    assert (len(host), host.num_bytes) == (3, 60)


def test_two_who_want_the_same_read_it_once() -> None:
    host, executor = tier(20)
    host.prefetch("a")
    first, second = host.fetch("a"), host.fetch("a")
    assert len(executor.jobs) == 1
    executor.finish()
    assert first.result() is second.result()
    assert host.reads == 1


@pytest.mark.parametrize("ask", ["fetch", "prefetch"])
def test_a_read_that_ends_while_another_asks_counts_once(ask: str) -> None:
    """It ends at the worst moment: as soon as the one who asks would let go of the lock."""
    host, executor = tier(25)
    ended = threading.Thread(target=executor.finish)

    class Ending(OrderedDict[str, tuple[object, int]]):
        """What is kept; the read under way ends in its thread right after the first look."""

        def _look(self) -> None:
            if ended.ident is None and executor.jobs:
                ended.start()
                ended.join(0.2)  # for ever, if the lock is held as it should be

        def get(self, key: str, default: Any = None) -> Any:
            found = super().get(key, default)
            self._look()
            return found

        def __contains__(self, key: object) -> bool:
            found = super().__contains__(key)
            self._look()
            return found

    host.prefetch("a")
    host._kept = Ending()
    getattr(host, ask)("a")
    ended.join()
    while executor.jobs:
        executor.finish()
    host.check()
    assert (host.reads, host.num_bytes, len(host)) == (1, 10, 1)
    for digest in "bcd":
        fetched(host, executor, digest)
    assert (host.num_bytes, len(host)) == (20, 2)


def test_many_threads_leave_the_bytes_counted() -> None:
    sizes = {str(number): 5 + number for number in range(12)}
    with ThreadPoolExecutor(4) as reading, ThreadPoolExecutor(4) as asking:
        host = HostTier(lambda digest: digest, lambda adapter: sizes[str(adapter)], 60, reading)

        def ask(seed: int) -> None:
            rng = random.Random(seed)
            for _ in range(400):
                digest = rng.choice(list(sizes))
                rng.choice([host.fetch, host.prefetch, host.prefetch, host.forget])(digest)

        list(asking.map(ask, range(4)))
    host.check()


def test_little_is_read_ahead_and_nothing_twice() -> None:
    host, executor = tier(1000)
    for number in range(10):
        host.prefetch(str(number))
    assert len(executor.jobs) == MAX_PREFETCHES
    host.fetch("wanted")
    assert len(executor.jobs) == MAX_PREFETCHES + 1


def test_a_failed_read_is_tried_again_and_a_forgotten_one_not_kept() -> None:
    answers: list[object] = [AdapterNotFound("not there yet"), "there", "changed"]

    def read(digest: str) -> object:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    host, executor = tier(100, read)
    future: Future[object] = host.fetch("a")
    executor.finish()
    with pytest.raises(AdapterNotFound):
        future.result()
    host.fetch("a")
    host.forget("a")
    executor.finish()
    assert (len(host), host.num_bytes) == (0, 0)
    assert fetched(host, executor, "a") == "changed"
