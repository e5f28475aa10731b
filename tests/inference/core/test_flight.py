"""A step is laid out while the one before is computed, and nothing of what comes out changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from inference.core.step import UNKNOWN, Done, Row, Sampled
from inference.protocol import Constraint
from tests.inference.core.engine import Engine
from tests.inference.core.fake_runner import FakeRunner


class Noted:
    """A launched step that notes when its results are read."""

    def __init__(self, events: list[str], name: str, step: Done) -> None:
        self._events, self._name, self._step = events, name, step

    def results(self) -> list[Sampled | None]:
        self._events.append(f"read {self._name}")
        return self._step.results()


class Noting(FakeRunner):
    """:ivar events: launches and reads, in order; :ivar computed: positions that were given KV."""

    def __init__(self, **values: Any) -> None:
        super().__init__(ahead=True, **values)
        self.events: list[str] = []
        self.computed = 0

    def launch(self, rows: Sequence[Row]) -> Any:
        name = str(sum(event.startswith("launch") for event in self.events))
        self.events.append(f"launch {name}")
        self.computed += sum(len(row.tokens) for row in rows)
        return Noted(self.events, name, super().launch(rows))


def test_the_next_step_is_launched_before_the_results_are_read() -> None:
    runner = Noting(eos=None)
    engine = Engine(runner)
    engine.add("one", [1, 2, 3], 4)
    engine.drain()
    assert runner.events == [
        *("launch 0", "launch 1", "read 0", "launch 2", "read 1", "launch 3", "read 2", "read 3"),
    ]
    assert engine.outputs["one"] == engine.expected([1, 2, 3], None, 4)


@pytest.mark.parametrize("length", [1, 2, 17])
def test_nothing_is_computed_beyond_the_last_token_that_may_come(length: int) -> None:
    runner = Noting(eos=None)
    engine = Engine(runner)
    engine.add("one", [1, 2, 3], length)
    engine.drain()
    assert runner.computed == 3 + length - 1
    assert engine.done["one"].finish == "length"


def test_a_text_that_stops_costs_one_position_more() -> None:
    runner = Noting(eos=None)
    engine = Engine(runner)
    text = engine.expected([1, 2, 3], None, 20)
    end = next(index for index in range(4, 20) if text[index] not in text[:index])
    engine.add("one", [1, 2, 3], 20, params={"stop_token_ids": (text[end],)})
    engine.drain()
    assert engine.outputs["one"] == text[: end + 1]
    assert engine.done["one"].finish == "stop"
    assert runner.computed == 3 + end + 1


@pytest.mark.parametrize(
    ("params", "limits"),
    [
        ({"presence_penalty": 0.5}, {}),
        ({"frequency_penalty": 0.5}, {}),
        ({"repetition_penalty": 1.1}, {}),
        ({"prompt_logprobs": 0}, {}),
        ({}, {"speculate_tokens": 2}),
    ],
)
def test_what_needs_the_token_before_is_waited_for(params: dict[str, Any], limits: dict[str, Any]) -> None:
    runner = Noting(eos=None)
    engine = Engine(runner, **limits)
    engine.add("one", [1, 2, 3], 6, params=params)
    for _ in range(3):
        engine.step()
        assert not engine.flight
    engine.drain()
    assert engine.outputs["one"] == engine.expected([1, 2, 3], None, 6)


def test_a_constraint_is_waited_for() -> None:
    engine = Engine(Noting(eos=None))
    free = engine.add("free", [1], 6)
    assert free.foreseeable
    bound = engine.add("bound", [1], 6, params={"constraint": Constraint("regex", "a*")})
    bound.matcher = object()  # type: ignore[assignment]
    assert not bound.foreseeable


def test_one_that_has_to_be_waited_for_joins_others_in_flight() -> None:
    engine = Engine(Noting(eos=None))
    engine.add("plain", [1, 2, 3], 12)
    engine.step()
    assert engine.flight
    engine.add("penalised", [4, 5], 4, params={"presence_penalty": 0.5})
    engine.step()
    assert not engine.flight
    assert engine.outputs == {
        "plain": engine.expected([1, 2, 3], None, 2),
        "penalised": engine.expected([4, 5], None, 1),
    }
    engine.drain()
    assert engine.outputs["plain"] == engine.expected([1, 2, 3], None, 12)
    assert engine.outputs["penalised"] == engine.expected([4, 5], None, 4)


def test_what_is_aborted_in_flight_gains_nothing_and_leaves_nothing() -> None:
    engine = Engine(Noting(eos=None))
    aborted = engine.add("aborted", [1, 2, 3], 12)
    other = engine.add("other", [4, 5, 6, 7], 12)
    for _ in range(3):
        engine.step()
    gained = list(engine.outputs["aborted"])
    assert aborted.unknown == 1
    assert aborted.tokens[-1] == UNKNOWN
    engine.scheduler.abort("aborted")
    engine.drain()
    assert engine.outputs["aborted"] == gained
    assert "aborted" not in engine.done
    assert engine.outputs["other"] == engine.expected(other.prompt, None, 12)


def test_all_aborted_in_flight_is_waited_for() -> None:
    engine = Engine(Noting(eos=None))
    engine.add("aborted", [1, 2, 3], 12)
    engine.step()
    engine.scheduler.abort("aborted")
    assert not engine.scheduler.live
    assert engine.flight
    engine.drain()
    assert not engine.flight


def test_a_preempted_one_keeps_the_token_in_flight() -> None:
    engine = Engine(Noting(eos=None, num_blocks=6))
    low = engine.add("low", [1, 2, 3, 4, 5], 10, priority=1)
    for _ in range(3):
        engine.step()
    before = len(engine.outputs["low"])
    engine.add("urgent", [9] * 18, 4)
    engine.step()
    assert low.preempted == 1
    assert len(engine.outputs["low"]) == before + 1
    assert low.unknown == 0
    engine.drain()
    assert engine.outputs["low"] == engine.expected(low.prompt, None, 10)
    assert engine.outputs["urgent"] == engine.expected([9] * 18, None, 4)


def test_blocks_filled_in_flight_are_cached_with_their_tokens() -> None:
    """The runner compares every block that is read with what should be in it."""
    engine = Engine(Noting(eos=None, num_blocks=64))
    engine.add("first", [1, 2, 3], 21)
    engine.drain()
    text = [1, 2, 3, *engine.outputs["first"]]
    for length in range(4, len(text)):
        again = engine.add(f"again{length}", [*text[:length], 49], 2)
        engine.drain()
        assert again.cached_tokens == length // 4 * 4


def test_the_same_steps_are_computed_but_one() -> None:
    """How the work is divided does not change: only what ended unforeseen is computed a position too far."""

    def run(ahead: bool) -> tuple[dict[str, list[int]], int]:
        engine = Engine(FakeRunner(eos=None, ahead=ahead, num_slots=2), max_waiting=200)
        for number in range(60):
            engine.add(
                str(number),
                [number % 7, *range(number % 11)],
                1 + number % 13,
                adapter="xyz"[number % 3],
                tenant="ab"[number % 2],
            )
        engine.drain()
        return engine.outputs, engine.runner.steps

    (plain, steps), (ahead, others) = run(False), run(True)
    assert plain == ahead
    assert others <= steps + steps // 4
