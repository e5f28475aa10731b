"""Who has a claim to a slot or a queue place while it does not run: by priority and turn, not for coming first."""

from __future__ import annotations

import pytest

from inference.core.residency import DRAIN_AFTER_SECONDS
from inference.core.sequence import State
from inference.errors import Overloaded
from tests.inference.core.engine import Engine
from tests.inference.core.fake_runner import FakeRunner

LIVE, BATCH = 0, 10
LONG = 300


def steps(engine: Engine, count: int) -> None:
    for _ in range(count):
        while engine.executor.jobs:
            engine.executor.finish()
        engine.step()


def until_done(engine: Engine, name: str, most: int) -> int:
    """How many steps it took."""
    for number in range(most):
        if name in engine.done:
            return number
        steps(engine, 1)
    raise AssertionError(f"{name} is not done after {most} steps")


def test_lines_that_gave_way_keep_no_slot_from_a_live_request() -> None:
    """Live requests for the base hold every place: whoever had one before waits, and with a pin would for ever."""
    engine = Engine(FakeRunner(num_slots=2, eos=None, num_blocks=400, max_model_len=400), max_running=2)
    for name in "xy":
        engine.add(f"line {name}", [1], LONG, tenant="batches", adapter=name, priority=BATCH)
    steps(engine, 5)
    assert len(engine.scheduler.running) == 2
    for number in range(2):
        engine.add(f"live {number}", [1], LONG, tenant="live", priority=LIVE)
    steps(engine, 2)
    assert [sequence.adapter for sequence in engine.scheduler.running] == [None, None]
    assert engine.residency.pinned == 2
    engine.add("other", [1], 4, tenant="other", adapter="z", priority=LIVE)
    until_done(engine, "other", int(DRAIN_AFTER_SECONDS * 100) + 40)
    assert engine.done["other"].finish == "length"
    engine.drain()
    assert all(progress.error is None for progress in engine.done.values())


def test_who_uses_what_is_unloaded_ends_first() -> None:
    """Also while others' requests run before it: the adapter may not be had again."""
    engine = Engine(FakeRunner(num_slots=1, eos=None, num_blocks=400, max_model_len=400), max_running=1)
    engine.add("line", [1], 20, tenant="batches", adapter="x", priority=BATCH)
    steps(engine, 5)
    engine.add("live", [1], LONG, tenant="live", priority=LIVE)
    steps(engine, 2)
    engine.residency.unload("x")
    engine.add("other", [1], 4, tenant="other", adapter="z", priority=LIVE)
    steps(engine, int(DRAIN_AFTER_SECONDS * 100) + 40)
    assert (engine.residency.pinned, "line" in engine.done) == (1, False)
    engine.drain()
    assert engine.done["line"].finish == engine.done["other"].finish == "length"
    assert sum(engine.residency.loads) == 2, "each once"


def test_a_live_prompt_does_not_wait_for_a_batchs() -> None:
    """Of the same tenant; prompts of its own priority still come one after the other."""
    engine = Engine(FakeRunner(eos=None, num_blocks=400, max_model_len=400), token_budget=24)
    engine.add("line", list(range(300)), 2, priority=BATCH)
    engine.add("same", list(range(50, 350)), 2, priority=BATCH)
    steps(engine, 1)
    engine.add("live", [1, 2, 3], 2, priority=LIVE)
    steps(engine, 1)
    assert {sequence.request_id for sequence in engine.scheduler.running} == {"line", "live"}
    engine.drain()


def test_a_resident_adapters_short_request_goes_before_who_was_served_more() -> None:
    """A tenant with many cold adapters has every slot asked to empty itself; what is in one still serves its own."""
    engine = Engine(FakeRunner(num_slots=2, eos=None, num_blocks=400, max_model_len=400), max_running=16)
    engine.add("long", [1], LONG, tenant="one", adapter="resident")
    steps(engine, 5)
    for number in range(12):
        engine.add(f"cold {number}", [1] * 20, 40, tenant="many", adapter=f"cold {number}")
    steps(engine, int(DRAIN_AFTER_SECONDS * 100) + 20)
    assert "long" not in engine.done
    engine.add("short", [1], 2, tenant="one", adapter="resident")
    assert engine.scheduler.fairness.committed("one") < engine.scheduler.fairness.committed("many")
    assert until_done(engine, "short", 20) < 12
    assert "long" not in engine.done
    engine.drain()


def test_a_further_choice_is_no_newcomer() -> None:
    """Its request has begun: a full queue refuses it no place, and nobody takes it."""
    engine = Engine(FakeRunner(eos=None, num_blocks=400, max_model_len=400), max_running=1, max_waiting=2)
    engine.add("first", [1], 30)
    steps(engine, 1)
    for number in range(2):
        engine.add(f"waits {number}", [1], 4, priority=BATCH)
    engine.add("first#1", [1], 4, priority=BATCH, begun=True)
    for number in range(2):
        engine.add(f"better {number}", [1], 4, tenant="b", priority=LIVE)
    assert {name for name, progress in engine.done.items() if progress.error} == {"waits 0", "waits 1"}
    with pytest.raises(Overloaded):
        engine.add("late", [1], 4, tenant="c", priority=BATCH)
    engine.drain()
    assert engine.done["first#1"].finish == "length"


@pytest.mark.parametrize("tenant", ["same", "other"])
def test_parked_requests_leave_a_full_queue_as_others_do(tenant: str) -> None:
    engine = Engine(
        FakeRunner(num_slots=1, eos=None, num_blocks=400, max_model_len=400),
        max_running=4,
        max_waiting=6,
        max_waiting_per_tenant=6,
    )
    for number in range(6):
        engine.add(f"line {number}", [1], 4, tenant="same", adapter=f"cold {number}", priority=BATCH)
    engine.step()  # nothing is read yet
    parked = [sequence for sequence in engine.scheduler._live.values() if sequence.state is State.PARKED]
    assert len(parked) == engine.scheduler.waiting.parked == 6
    engine.add("live", [1], 4, tenant=tenant, priority=LIVE)
    assert [name for name, progress in engine.done.items() if progress.error] == ["line 5"]
    assert engine.scheduler.waiting.parked == 5
    engine.drain()
    assert engine.done["live"].finish == "length"


def test_a_parked_crowd_gives_a_lighter_tenant_a_place() -> None:
    engine = Engine(FakeRunner(num_slots=1, eos=None, num_blocks=400, max_model_len=400), max_running=4, max_waiting=6)
    for number in range(6):
        engine.add(f"many {number}", [1], 4, tenant="many", adapter=f"cold {number}")
    engine.step()
    engine.add("one", [1], 4, tenant="one")
    assert [name for name, progress in engine.done.items() if progress.error] == ["many 5"]
    engine.drain()
