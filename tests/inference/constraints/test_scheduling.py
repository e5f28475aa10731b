"""Constrained requests in the scheduler: masks that are late, preemption, languages that break, a lane that hangs."""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Sequence as Seq
from typing import Any

import pytest

from inference.constraints import lanes
from inference.constraints.lanes import Lanes
from inference.constraints.matcher import Matcher
from inference.constraints.vocabulary import Vocabulary
from inference.core.sequence import Sequence
from inference.core.step import Row, Sampled
from inference.protocol import Constraint, SamplingParams
from tests.inference.constraints.conftest import VOCAB
from tests.inference.core.engine import Engine
from tests.inference.core.fake_runner import FakeRunner

WORD = Constraint("regex", "[a-p]{30}")


class MaskedRunner(FakeRunner):
    """Its tokens are a hash of the sequence, taken from those that the mask allows.

    :ivar skip: asks so many masked rows' masks too early on purpose, as a step that is too short would.
    """

    def __init__(self, **sizes: Any) -> None:
        super().__init__(vocab_size=VOCAB, eos=2, max_model_len=128, **sizes)
        self.skip = 0

    def run(self, rows: Seq[Row]) -> list[Sampled | None]:
        results = super().run(rows)
        for index, row in enumerate(rows):
            if row.mask is None:
                continue
            self.skip -= 1
            bits = None if self.skip >= 0 else row.mask.take(5.0)
            if bits is None:
                results[index] = Sampled([])
                continue
            allowed = [token for token in range(VOCAB) if bits[token >> 3] >> (token & 7) & 1]
            everything = repr([*row.prompt, *row.output]).encode()
            results[index] = Sampled([allowed[zlib.crc32(everything) % len(allowed)]])
        return results


class Lane:
    """A matcher that is advanced at once, in the same thread."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary

    def matcher(self, constraint: Constraint, **params: Any) -> Matcher:
        matcher = Matcher(constraint, SamplingParams(**params), lambda matcher: matcher.step())
        matcher.compile(self._vocabulary)
        return matcher


@pytest.fixture
def lane(vocabulary: Vocabulary) -> Lane:
    return Lane(vocabulary)


def _add(engine: Engine, lane: Lane, name: str, constraint: Constraint = WORD, **values: Any) -> Sequence:
    sequence = engine.add(name, values.pop("prompt", [5, 6, 7]), 40, matcher=lane.matcher(constraint), **values)
    assert engine.scheduler.compiled(sequence, None) == []
    return sequence


def _alone(lane: Lane, **values: Any) -> list[int]:
    engine = Engine(MaskedRunner())
    _add(engine, lane, "r", **values)
    engine.drain()
    assert engine.done["r"].finish == "stop"
    return engine.outputs["r"]


def test_a_late_mask_costs_a_step_and_changes_nothing(lane: Lane) -> None:
    expected = _alone(lane)
    runner = MaskedRunner()
    engine = Engine(runner)
    _add(engine, lane, "r")
    free = engine.add("free", [9, 8, 7, 6], 20)
    for step in range(200):
        runner.skip = 1 if step % 3 else 0
        if not engine.scheduler.live:
            break
        engine.step()
    engine.drain()
    assert engine.outputs["r"] == expected
    assert engine.outputs["free"] == engine.expected(free.prompt, None, 20)


def test_a_preempted_sequence_keeps_its_place_in_the_language(lane: Lane) -> None:
    engine = Engine(MaskedRunner(num_blocks=16))
    for number in range(4):
        _add(engine, lane, f"r{number}", prompt=[5, 6, number])
    engine.drain()
    assert engine.scheduler.preemptions > 0
    for number in range(4):
        assert engine.outputs[f"r{number}"] == _alone(lane, prompt=[5, 6, number])


def test_a_request_waits_for_its_constraint_and_may_be_aborted_meanwhile(lane: Lane) -> None:
    engine = Engine(MaskedRunner())
    sequences = [engine.add(f"r{number}", [5, 6], 40, matcher=lane.matcher(WORD)) for number in range(3)]
    assert engine.step() == 0
    assert engine.scheduler.queued == 3
    engine.scheduler.abort("r0")
    assert engine.scheduler.compiled(sequences[0], None) == []
    error = sequences[1].matcher
    assert error is not None
    error.fail("no")
    (failed,) = engine.scheduler.compiled(sequences[1], error.error)
    assert (failed.sequence.request_id, str(failed.error)) == ("r1", "response_format: no")
    engine.scheduler.compiled(sequences[2], None)
    engine.drain()
    assert list(engine.done) == ["r2"]


def test_a_language_that_breaks_fails_its_request_alone(lane: Lane) -> None:
    engine = Engine(MaskedRunner())
    broken = _add(engine, lane, "broken")
    _add(engine, lane, "fine")
    for _ in range(5):
        engine.step()
    assert broken.matcher is not None
    broken.matcher.fail("too complex")
    (failed,) = engine.scheduler.drop_broken()
    assert failed.sequence is broken
    engine.drain()
    assert engine.outputs["fine"] == _alone(lane)


def test_a_slow_mask_holds_up_nobody(lane: Lane) -> None:
    """Its request takes no part in steps until the mask is there."""
    engine = Engine(MaskedRunner())
    slow = _add(engine, lane, "slow")
    engine.add("free", [1, 2, 3], 30)
    engine.step()
    assert slow.matcher is not None
    slow.matcher.slow = True
    slow.matcher._push = lambda _: None  # its thread is busy
    engine.step()
    for _ in range(10):
        assert engine.step() == 1, "only the free one"
    slow.matcher.step()
    assert engine.step() == 2
    slow.matcher._push = lambda matcher: matcher.step()
    slow.matcher.step()
    engine.drain()
    assert engine.outputs["slow"] == _alone(lane)


def test_a_lane_that_hangs_is_replaced(vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "STUCK_SECONDS", 0.2)
    both = Lanes(lambda: None)
    hangs, fine = (Matcher(WORD, SamplingParams(), both.push) for _ in range(2))
    fine.compile(vocabulary)
    gate = threading.Event()
    monkeypatch.setattr(hangs, "step", gate.wait)
    hangs.advance(65)
    fine.advance(vocabulary.encode("a")[0])
    assert fine.take(0.1) is None
    time.sleep(0.2)
    both.check(time.monotonic())
    assert str(hangs.error) == "response_format: the language is too complex to follow"
    assert fine.take(5.0) is not None
    gate.set()
    both.close()


def test_masks_move_to_the_slow_lane_and_stay_there(vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch) -> None:
    woken = threading.Event()
    both = Lanes(woken.set)
    matcher = Matcher(WORD, SamplingParams(), both.push)
    matcher.compile(vocabulary)
    assert matcher.ready
    monkeypatch.setattr("inference.constraints.matcher.SLOW_SECONDS", -1.0)
    token = vocabulary.encode("a")[0]
    matcher.advance(token)
    assert matcher.take(5.0) is not None
    assert matcher.slow
    assert not woken.is_set()
    matcher.advance(token)
    assert woken.wait(5.0), "the core is woken when a slow mask is there"
    assert matcher.ready
    both.close()
