"""Log-probabilities: equal to transformers', exact among equals, and untouched by how a request samples."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from inference.core.step import Row, Sampled
from inference.logprobs import Logprobs, best, best_by_key, slice_rows
from inference.protocol import SamplingParams, TokenLogprob
from inference.runner import TorchRunner
from tests.inference.no_waiting import no_waiting, numberless

PROMPT = [11, 40, 7, 99, 203, 5, 88, 17, 150, 61, 33, 12, 250, 9, 77, 101, 45, 8, 19, 64]
BLOCKS = list(range(8))


@pytest.fixture(scope="module")
def runner(tiny_model_dir: Path) -> TorchRunner:
    return TorchRunner.load(tiny_model_dir, num_blocks=64, num_slots=1, max_model_len=128)


@pytest.fixture(scope="module")
def expected(tiny_model_dir: Path) -> torch.Tensor:
    """``[len(PROMPT), vocab]``: after each token of the prompt, the next one's distribution by transformers."""
    return reference(tiny_model_dir, PROMPT)


def reference(model_dir: Path, tokens: list[int]) -> torch.Tensor:
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    with torch.inference_mode():
        return model(torch.tensor([tokens])).logits[0].double().log_softmax(dim=-1)


def one(runner: TorchRunner, row: Row) -> Sampled:
    (result,) = runner.run([row])
    assert result is not None
    return result


def params(**fields: Any) -> SamplingParams:
    return SamplingParams(**{"temperature": 0.0, "logprobs": 5, **fields})


def check(entry: TokenLogprob, distribution: torch.Tensor, top: int) -> None:
    assert entry.logprob == pytest.approx(float(distribution[entry.token]), abs=1e-4)
    best = distribution.topk(top)
    assert [token for token, _ in entry.top] == best.indices.tolist()
    assert [value for _, value in entry.top] == pytest.approx(best.values.tolist(), abs=1e-4)


def test_a_chosen_tokens_logprob_is_the_models_own(runner: TorchRunner, expected: torch.Tensor) -> None:
    result = one(runner, Row(PROMPT, 0, BLOCKS, params=params(), prompt=PROMPT))
    assert result.logprobs is not None
    check(result.logprobs[0], expected[-1], 5)
    assert result.logprobs[0].token == result.tokens[0] == result.logprobs[0].top[0][0]


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 1.7, "top_p": 0.9},
        {"logit_bias": {20: 100.0}},
        {"repetition_penalty": 1.8, "presence_penalty": 2.0, "min_tokens": 4, "stop_token_ids": (1, 2, 3)},
    ],
)
def test_how_a_request_samples_does_not_change_what_is_reported(
    runner: TorchRunner, expected: torch.Tensor, fields: dict[str, Any]
) -> None:
    result = one(runner, Row(PROMPT, 0, BLOCKS, params=params(**fields), prompt=PROMPT, seed=4))
    assert result.logprobs is not None
    check(result.logprobs[0], expected[-1], 5)


def test_only_rows_that_ask_pay_and_each_has_its_own_number(runner: TorchRunner, expected: torch.Tensor) -> None:
    rows = [
        Row(PROMPT, 0, list(range(8 * index, 8 * index + 8)), params=params(logprobs=count), prompt=PROMPT)
        for index, count in enumerate([None, 0, 20, 3])
    ]
    results = [result for result in runner.run(rows) if result is not None]
    assert results[0].logprobs is None
    tops = [result.logprobs[0].top for result in results[1:] if result.logprobs]
    assert [len(top) for top in tops] == [0, 20, 3]
    assert tops[1][:3] == tops[2]
    assert len({result.tokens[0] for result in results}) == 1


@pytest.mark.parametrize("chunk", [1, 7, 20])
def test_prompt_logprobs_do_not_depend_on_the_chunks(runner: TorchRunner, expected: torch.Tensor, chunk: int) -> None:
    found: list[TokenLogprob] = []
    for start in range(0, len(PROMPT), chunk):
        tokens = PROMPT[start : start + chunk]
        last = start + len(tokens) == len(PROMPT)
        row = Row(tokens, start, BLOCKS, params=params() if last else None, prompt=PROMPT, prompt_logprobs=4)
        result = one(runner, row)
        assert (len(result.tokens), result.logprobs is not None) == ((1, True) if last else (0, False))
        found += result.prompt_logprobs
    assert [entry.token for entry in found] == PROMPT[1:]
    for entry, distribution in zip(found, expected, strict=False):
        check(entry, distribution, 4)


def test_a_long_prompt_is_scored_in_slices(runner: TorchRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    row = Row(PROMPT, 0, BLOCKS, params=params(), prompt=PROMPT, prompt_logprobs=2)
    whole = one(runner, row).prompt_logprobs
    monkeypatch.setattr("inference.logprobs.SLICE_BYTES", 4 * runner.vocab_size * 6)
    assert slice_rows(runner.vocab_size) == 6
    sliced = one(runner, row).prompt_logprobs
    assert [entry.token for entry in sliced] == [entry.token for entry in whole]
    assert [entry.logprob for entry in sliced] == pytest.approx([entry.logprob for entry in whole], abs=1e-5)


def test_guesses_change_neither_tokens_nor_their_logprobs(runner: TorchRunner) -> None:
    """Eight tokens one by one; then the same with right guesses, and with one that is wrong."""
    settings = params(temperature=0.8, logprobs=2, frequency_penalty=0.7)
    output: list[int] = []
    plain: list[TokenLogprob] = []
    tokens, start = PROMPT, 0
    for _ in range(8):
        result = one(runner, Row(tokens, start, BLOCKS, params=settings, output=output, prompt=PROMPT, seed=3))
        assert result.logprobs is not None
        start, tokens = start + len(tokens), result.tokens
        output.append(result.tokens[0])
        plain += result.logprobs
    one(runner, Row(PROMPT, 0, BLOCKS, params=settings, prompt=PROMPT, seed=3))
    for guesses, right in ((output[1:5], 4), ([*output[1:3], output[3] + 1, output[4]], 2)):
        result = one(
            runner,
            Row(
                [output[0], *guesses], len(PROMPT), BLOCKS, params=settings, output=output[:1], prompt=PROMPT, seed=3,
                draft=4,
            ),
        )  # fmt: skip
        assert result.tokens == output[1 : right + 2]
        assert result.logprobs is not None
        for got, wanted in zip(result.logprobs, plain[1 : right + 2], strict=True):
            assert got.token == wanted.token
            assert got.logprob == pytest.approx(wanted.logprob, abs=1e-5)


def test_equals_come_by_token_id_on_both_sides_of_the_cut() -> None:
    logits = torch.zeros(3, 5000)
    logits[0, [4000, 17, 2500]] = 5.0
    logits[1, 4999] = 1.0
    entries = Logprobs.begin(logits, [17, 4999, 3], [2, 4, 3]).read()
    assert [[token for token, _ in entry.top] for entry in entries] == [[17, 2500], [4999, 0, 1, 2], [0, 1, 2]]
    assert entries[2].logprob == pytest.approx(-math.log(5000))
    (all_of_it,) = Logprobs.begin(torch.zeros(1, 3), [2], [20]).read()
    assert [token for token, _ in all_of_it.top] == [0, 1, 2]


@pytest.mark.parametrize("find", [best, best_by_key])
@pytest.mark.parametrize("width", [1, 5, 21, 3000])
def test_both_ways_of_ranking_are_a_stable_sort(
    find: Callable[[torch.Tensor, int], tuple[torch.Tensor, torch.Tensor]], width: int
) -> None:
    torch.manual_seed(width)
    logits = torch.randn(7, width) * 3
    logits[1:3] = logits[1:3].round()  # equals everywhere, zeros of both signs among them
    logits[3, ::2] = float("-inf")
    logits[4] = -0.0
    logits[4, ::3] = 0.0
    logits[5, -1] = float("inf")
    for count in {1, min(20, width), width if width < 50 else 50}:
        values, ids = find(logits, count)
        expected = logits.sort(dim=1, descending=True, stable=True)
        assert torch.equal(ids, expected.indices[:, :count])
        assert torch.equal(values, expected.values[:, :count])


def test_ranking_in_slices_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.randn(7, 300).round()
    whole = best_by_key(logits, 9)
    monkeypatch.setattr("inference.logprobs.SLICE_BYTES", 4 * 300 * 2)
    assert all(torch.equal(*pair) for pair in zip(whole, best_by_key(logits, 9), strict=True))


def test_tokens_may_still_be_on_the_device() -> None:
    logits, tokens, tops = torch.randn(4, 50), [3, 49, 0, 7], [0, 3, 50, 1]
    begun = Logprobs.begin(logits.clone(), torch.tensor(tokens), tops)
    expected = Logprobs.begin(logits, tokens, tops).read()
    assert begun.read() == expected
    assert [len(entry.top) for entry in expected] == tops
    assert Logprobs.begin(logits[:0], [], []).read() == []


@pytest.mark.parametrize("tops", [[0, 0], [3, 20]])
def test_nobody_waits_before_they_are_read(tops: list[int]) -> None:
    with no_waiting():
        Logprobs.begin(numberless(2, 600), numberless(2, dtype=torch.int64), tops)
        Logprobs.begin(numberless(2, 600), [5, 6], tops)


@pytest.mark.slow
def test_a_real_models_logprobs_equal_transformers(smollm_dir: Path) -> None:
    prompt = [504, 3575, 282, 4649, 314, 7042, 30, 378, 3575, 282, 4486, 314]
    runner = TorchRunner.load(smollm_dir, num_blocks=8, num_slots=0, max_model_len=64)
    result = one(runner, Row(prompt, 0, [0], params=params(logprobs=20), prompt=prompt, prompt_logprobs=20))
    distributions = reference(smollm_dir, prompt)
    assert result.logprobs is not None
    assert len(result.prompt_logprobs) == len(prompt) - 1
    for entry, distribution in zip([*result.prompt_logprobs, *result.logprobs], distributions, strict=True):
        assert entry.logprob == pytest.approx(float(distribution[entry.token]), abs=1e-4)
        for token, value in entry.top:
            assert value == pytest.approx(float(distribution[token]), abs=1e-4)
