"""Sampling on the device: the tokens of the sampler that waits, whatever is beside a row, and no waiting."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from inference.core.step import Row
from inference.device_sampler import sample_on_device
from inference.protocol import SamplingParams
from inference.sampler import sample
from inference.token_weights import UNIT, pick, weights
from tests.inference.no_waiting import WAITS, Waited, no_waiting, numberless

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ENDS = {2, 1 << 30}  # the second is not in any vocabulary here

MIXED: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {},
    {"temperature": 0.3},
    {"top_p": 0.9},
    {"top_k": 7, "temperature": 1.5},
    {"min_p": 0.02},
    {"top_p": 0.4, "top_k": 40, "min_p": 0.001, "temperature": 0.7},
    {"temperature": 0.0, "repetition_penalty": 1.4},
    {"presence_penalty": 1.0, "frequency_penalty": 0.3, "logit_bias": {4: 2.0, 5: -100.0}},
    {"top_p": 0.8, "repetition_penalty": 0.8, "min_tokens": 100, "stop_token_ids": (0, 3)},
]


def row(output: Sequence[int] = (), prompt: Sequence[int] = (), seed: int = 0, **params: Any) -> Row:
    return Row([1], 0, [0], params=SamplingParams(**params), output=output, prompt=prompt, seed=seed)


@contextmanager
def unsynchronised() -> Iterator[None]:
    """On CUDA an operation that waits raises, as far as torch notices."""
    if DEVICE.type == "cuda":
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        if DEVICE.type == "cuda":
            torch.cuda.set_sync_debug_mode("default")


def on_device(logits: Tensor, rows: Sequence[Row]) -> list[int]:
    given = logits.to(DEVICE, copy=True)
    with unsynchronised():
        found = sample_on_device(given, rows, ENDS)
    assert (found.dtype, found.device.type, found.shape) == (torch.int64, DEVICE.type, (len(rows),))
    return found.tolist()


def expected(logits: Tensor, rows: Sequence[Row]) -> list[int]:
    return sample(logits.to(DEVICE, copy=True), rows, ENDS)


def parameters(vocab: int) -> st.SearchStrategy[SamplingParams]:
    tokens = st.integers(0, vocab - 1)
    return st.builds(
        SamplingParams,
        temperature=st.sampled_from([0.0, 1e-30, 0.2, 1.0, 1.0, 2.0]),
        top_k=st.sampled_from([0, 0, 1, 2, 6, 255, 256, 257, vocab - 1, vocab, vocab + 1, 1 << 30]),
        top_p=st.sampled_from([1.0, 1.0, 1 - 1e-12, 0.99, 0.9, 0.75, 0.5, 0.25, 1e-9]),
        min_p=st.sampled_from([0.0, 0.0, 1e-13, 1e-9, 0.125, 0.25, 0.5, 1.0]),
        presence_penalty=st.sampled_from([0.0, 0.0, -2.0, 0.7]),
        frequency_penalty=st.sampled_from([0.0, 0.0, 0.1, 2.0]),
        repetition_penalty=st.sampled_from([1.0, 1.0, 0.3, 1.3]),
        logit_bias=st.dictionaries(tokens, st.sampled_from([-100.0, -0.1, 1.0, 100.0]), max_size=3),
        stop_token_ids=st.lists(tokens, max_size=2).map(tuple),
        min_tokens=st.sampled_from([0, 0, 2]),
    )


@st.composite
def steps(draw: st.DrawFn) -> tuple[Tensor, list[Row]]:
    vocab = draw(st.sampled_from([7, 33, 255, 256, 257, 600, 5000]))
    tokens = st.lists(st.integers(0, vocab - 1), max_size=6)
    rows = draw(
        st.lists(
            st.builds(
                Row,
                tokens=st.just([1]),
                start=st.just(0),
                block_table=st.just([0]),
                params=parameters(vocab),
                output=tokens,
                prompt=tokens,
                seed=st.integers(-(1 << 63), (1 << 63) - 1),
            ),
            min_size=1,
            max_size=8,
        )
    )
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1 << 30)))
    logits = torch.randn(len(rows), vocab, generator=generator) * draw(st.sampled_from([0.0, 0.3, 3.0, 30.0]))
    if draw(st.booleans()):
        # halves and quarters of probabilities, many of them equal: borders of top_p and min_p are hit exactly
        logits = logits.round() * math.log(2)
    if draw(st.booleans()):
        logits[:, draw(st.integers(0, vocab - 2)) :] = float("-inf")
        logits[:, 0] = 0.0
    return logits, rows


@settings(max_examples=300, deadline=None)
@given(steps())
def test_the_tokens_of_the_sampler_that_waits(step: tuple[Tensor, list[Row]]) -> None:
    assert on_device(*step) == expected(*step)


@pytest.mark.parametrize("vocab", [7, 1000, 32_001, 130_000])
def test_vocabularies_of_any_size(vocab: int) -> None:
    torch.manual_seed(vocab)
    logits = torch.randn(len(MIXED), vocab) * 2
    rows = [row((4, 5, 4), (1, 6), seed, **params) for seed, params in enumerate(MIXED)]
    assert on_device(logits, rows) == expected(logits, rows)


@pytest.mark.parametrize("vocab", [31, 600, 32_001])
def test_a_row_alone_and_in_any_batch(vocab: int) -> None:
    torch.manual_seed(vocab)
    rows = [row((4, 5, 4), (1, 6), seed, **params) for seed, params in enumerate(MIXED * 2)]
    logits = torch.randn(len(rows), vocab)
    together = on_device(logits, rows)
    assert [on_device(logits[index : index + 1], [rows[index]])[0] for index in range(len(rows))] == together
    assert on_device(logits.flip(0), rows[::-1]) == together[::-1]
    assert on_device(logits[3:], rows[3:]) == together[3:]


def test_what_is_taken_together_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [row((4, 5, 4), (1, 6), seed, **params) for seed, params in enumerate(MIXED * 3)]
    logits = torch.randn(len(rows), 600)
    whole = on_device(logits, rows)
    monkeypatch.setattr("inference.device_sampler._TOGETHER", 1300)
    assert on_device(logits, rows) == whole == expected(logits, rows)


def test_rows_laid_out_otherwise_and_none() -> None:
    rows = [row(seed=seed, **params) for seed, params in enumerate(MIXED)]
    logits = torch.randn(600, len(rows)).t()
    assert on_device(logits, rows) == expected(logits.contiguous(), rows)
    assert sample_on_device(torch.empty(0, 600, device=DEVICE), [], ENDS).tolist() == []


def test_what_is_no_number_gives_a_token_and_concerns_its_own_row_alone() -> None:
    rows = [row((4, 5, 4), (1, 6), seed, **params) for seed, params in enumerate(MIXED)]
    logits = torch.randn(len(rows), 600)
    fine = on_device(logits, rows)
    for value in ("nan", "inf", "-inf"):
        for columns in (slice(None), slice(5, 6), slice(5, None)):
            for bad in range(len(rows)):
                given = logits.clone()
                given[bad, columns] = float(value)
                found = on_device(given, rows)
                assert 0 <= found[bad] < 600
                assert 0 <= expected(given, rows)[bad] < 600
                assert found[:bad] + found[bad + 1 :] == fine[:bad] + fine[bad + 1 :]


class Unknown(Sequence[int]):
    """Tokens that the host does not know yet."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        raise AssertionError("read before it is known")


def test_only_penalties_read_earlier_output() -> None:
    penalties: dict[str, float] = {"presence_penalty": 0.1, "frequency_penalty": -0.1, "repetition_penalty": 1.1}
    for name, value in penalties.items():
        params = SamplingParams(**{name: value})
        assert params.penalises
        with pytest.raises(AssertionError, match="before it is known"):
            sample_on_device(torch.zeros(1, 9), [replace(row(), params=params, output=Unknown(2))], ENDS)
    rows = [row(range(3), seed=seed, **params) for seed, params in enumerate(MIXED)]
    rows = [each for each in rows if each.params and not each.params.penalises]
    assert len(rows) == len(MIXED) - 3
    rows.append(row(range(3), min_tokens=5, logit_bias={7: 1.0}, stop_token_ids=(9,)))
    logits = torch.randn(len(rows), 600)
    assert on_device(logits, [replace(each, output=Unknown(3)) for each in rows]) == expected(logits, rows)


def test_a_number_just_below_one_never_falls_on_what_cannot_be_chosen() -> None:
    logits = torch.tensor([[0.0, -1.0, -2.0, float("-inf"), -1e9]] * 2)
    found = weights(logits, torch.ones(2))
    assert found[0, 0] == UNIT
    assert found[0, 3:].tolist() == [0, 0]
    sums = found.cumsum(dim=1)
    assert pick(sums, sums[:, -1:], torch.tensor([1 - 2**-53, 0.0], dtype=torch.float64)).tolist() == [2, 0]
    assert pick(sums, sums[:, :1], torch.tensor([1 - 2**-53, 0.0], dtype=torch.float64)).tolist() == [0, 0]


@pytest.mark.parametrize("params", [*MIXED, None], ids=str)
def test_the_host_does_not_wait(params: dict[str, Any] | None) -> None:
    rows = [row((4, 5), (1, 6), 3, **each) for each in (MIXED if params is None else [params] * 3)]
    with no_waiting():
        found = sample_on_device(numberless(len(rows), 600), rows, ENDS)
    assert found.shape == (len(rows),)


@pytest.mark.parametrize("params", MIXED, ids=str)
def test_the_sampler_that_waits_is_told_from_one_that_does_not(params: dict[str, Any]) -> None:
    with no_waiting(), pytest.raises(Waited):
        sample(numberless(2, 600), [row((4,), seed=seed, **params) for seed in range(2)], ENDS)


@pytest.mark.parametrize("way", WAITS)
def test_every_way_of_waiting_is_noticed(way: str) -> None:
    with no_waiting(), pytest.raises(Waited):
        WAITS[way](numberless(2, 3))
