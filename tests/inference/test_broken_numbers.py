"""An adapter of finite weights may overflow on some token: that request ends with an error, and nobody else sees it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from inference.core.limits import Limits
from inference.core.loop import Loop
from inference.core.messages import Probe
from inference.core.step import Done, Row, Sampled
from inference.errors import InvalidRequest
from inference.protocol import SamplingParams
from inference.runner import TorchRunner
from tests.inference.core.engine import Engine
from tests.inference.core.fake_runner import FakeRunner
from tests.inference.test_adapter_kinds import KINDS, save_adapter

KINDS_OF_REQUEST: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 1.0, "top_p": 0.5, "min_p": 0.1},
    {"temperature": 0.0, "logprobs": 2},
    {"temperature": 0.0, "repetition_penalty": 1.2},
)


@pytest.fixture(params=["waited for", "ahead"])
def runner(request: pytest.FixtureRequest, tiny_model_dir: Path, tmp_path: Path) -> TorchRunner:
    """Slot 0 overflows for every token; slot 1 does not."""
    runner = TorchRunner.load(tiny_model_dir, num_blocks=64, num_slots=2, max_model_len=128)
    for slot in range(2):
        adapter = runner.read_adapter(save_adapter(tiny_model_dir, tmp_path / str(slot), slot, KINDS["all linears"]))
        if slot == 0:
            for weights in adapter.layers[0].sites.values():
                for matrix in (*weights.a, *weights.b):
                    if matrix is not None:
                        matrix.fill_(1e30)
        runner.load_adapter(slot, adapter)
    if request.param == "ahead":
        runner.go_ahead()
    return runner


@pytest.mark.parametrize("values", KINDS_OF_REQUEST, ids=str)
def test_the_row_is_broken_and_no_other(runner: TorchRunner, values: dict[str, Any]) -> None:
    params = SamplingParams(max_tokens=8, **values)
    rows = [Row([5, 6, 7, 8], 0, [slot + 1], slot, params, [], [5, 6, 7, 8], 1) for slot in (-1, 0, 1)]
    alone = [runner.run([row])[0] for row in rows]
    together = runner.run(rows)
    for found in (alone, together):
        assert [result is not None and result.broken for result in found] == [False, True, False]
        assert found[1] is not None
        assert found[1].tokens == []
    assert [result and result.tokens for result in together] == [result and result.tokens for result in alone]


def test_so_is_a_prompt_whose_log_probabilities_are_no_numbers(runner: TorchRunner) -> None:
    rows = [Row([5, 6, 7], 0, [slot + 1], slot, None, [], [5, 6, 7, 8], 1, prompt_logprobs=1) for slot in (0, 1)]
    first, second = runner.run(rows)
    assert first is not None
    assert first.broken
    assert second is not None
    assert not second.broken


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("column", [0, 7])
@pytest.mark.parametrize(("number", "temperature"), [("inf", 0.0), ("inf", 1.0), ("nan", 1.0)])
def test_one_number_of_a_row_is_enough(
    tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch, number: str, temperature: float, column: int, ahead: bool
) -> None:
    """An adapter of the head may overflow in a single output."""
    runner = TorchRunner.load(tiny_model_dir, num_blocks=8, num_slots=0, max_model_len=64)
    if ahead:
        runner.go_ahead()
    whole = runner.logits

    def one(hidden: torch.Tensor, places: Any, slots: Any) -> torch.Tensor:
        logits = whole(hidden, places, slots)
        logits[0, column] = float(number)
        return logits

    monkeypatch.setattr(runner, "logits", one)
    for reported in (None, 1):
        params = SamplingParams(max_tokens=8, temperature=temperature, logprobs=reported)
        first, second = runner.run([Row([5, 6], 0, [block], -1, params, [], [5, 6], 1) for block in (1, 2)])
        assert first is not None
        assert second is not None
        assert (first.broken, second.broken) == (True, False)
        assert (first.tokens, len(second.tokens)) == ([], 1)


def test_a_guess_before_the_broken_one_stands(tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = TorchRunner.load(tiny_model_dir, num_blocks=8, num_slots=0, max_model_len=64)
    params = SamplingParams(max_tokens=8, temperature=0.0)
    (plain,) = runner.run([Row([5, 6], 0, [1], -1, params, [], [5, 6], 1)])
    assert plain is not None
    guess = plain.tokens[0]
    whole = runner.logits

    def half(hidden: torch.Tensor, places: Any, slots: Any) -> torch.Tensor:
        logits = whole(hidden, places, slots)
        logits[1:] = float("nan")
        return logits

    monkeypatch.setattr(runner, "logits", half)
    (found,) = runner.run([Row([5, 6, guess, 9], 0, [2], -1, params, [], [5, 6], 1, draft=2)])
    assert found is not None
    assert found.tokens == [guess]
    assert not found.broken


class Overflowing(FakeRunner):
    """Adapter ``x`` overflows from the third token on."""

    def _result(self, row: Row, everything: list[int], known: int, adapter: str) -> Any:
        result = super()._result(row, everything, known, adapter)
        if result is not None and adapter == "x" and len(row.output) >= 2:
            result.tokens, result.broken = [], True
        return result


@pytest.mark.parametrize("ahead", [False, True])
def test_the_request_ends_and_leaves_nothing(ahead: bool) -> None:
    engine = Engine(Overflowing(eos=None, ahead=ahead))
    for name, adapter in (("one", "x"), ("two", "y"), ("three", None), ("four", "x")):
        engine.add(name, [1, 2, 3], 9, adapter=adapter)
    engine.drain()
    for name in ("one", "four"):
        error = engine.done[name].error
        assert isinstance(error, InvalidRequest)
        assert error.param == "model"
        assert engine.outputs[name] == engine.expected([1, 2, 3], "x", 2)
    assert engine.outputs["two"] == engine.expected([1, 2, 3], "y", 9)
    assert engine.outputs["three"] == engine.expected([1, 2, 3], None, 9)


@pytest.mark.parametrize("broken", [False, True])
def test_a_device_that_computes_no_numbers_is_found_by_its_probe(tmp_path: Path, broken: bool) -> None:
    class Device(FakeRunner):
        def launch(self, rows: Any) -> Done:
            return Done([Sampled([], broken=True)]) if broken else super().launch(rows)

    said: list[Any] = []
    loop = Loop(Device(), Limits(max_model_len=64), base="base", store=tmp_path, send=said.append)
    loop._handle(Probe(7))
    (reply,) = said
    assert reply.call == 7
    assert (reply.error is not None) == broken
