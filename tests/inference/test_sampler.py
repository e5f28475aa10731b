"""Sampling: exact where it is greedy, distributed as promised where it draws, and independent of the batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from inference.core.step import Row
from inference.protocol import SamplingParams
from inference.sampler import adjustment, sample, uniform

VOCAB = 600


def row(output: Sequence[int] = (), prompt: Sequence[int] = (), seed: int = 0, **params: Any) -> Row:
    return Row([1], 0, [0], params=SamplingParams(**params), output=output, prompt=prompt, seed=seed)


def logits_of(*probabilities: float) -> torch.Tensor:
    values = torch.full((1, VOCAB), float("-inf"))
    values[0, : len(probabilities)] = torch.tensor(probabilities).log()
    return values


def counts(logits: torch.Tensor, draws: int = 4000, **params: Any) -> list[float]:
    """Share of each of the first five tokens over many seeds."""
    rows = [row(seed=seed, **params) for seed in range(draws)]
    tokens = torch.tensor(sample(logits.repeat(draws, 1), rows, ()))
    return [round(float((tokens == token).float().mean()), 3) for token in range(5)]


def test_greedy_takes_the_lowest_of_equals() -> None:
    logits = torch.zeros(2, VOCAB)
    logits[0, [17, 400]] = 3.0
    assert sample(logits, [row(temperature=0.0), row(temperature=0.0)], ()) == [17, 0]


@pytest.mark.parametrize("truncation", [{}, {"top_k": VOCAB}, {"min_p": 1e-9}])
def test_draws_follow_the_distribution(truncation: dict[str, Any]) -> None:
    share = counts(logits_of(0.5, 0.3, 0.15, 0.05), **truncation)
    assert share == pytest.approx([0.5, 0.3, 0.15, 0.05, 0.0], abs=0.03)


def test_temperature_sharpens() -> None:
    # squared and renormalised: 0.64/0.68, 0.04/0.68
    share = counts(logits_of(0.8, 0.2), temperature=0.5)
    assert share[:2] == pytest.approx([16 / 17, 1 / 17], abs=0.02)


def test_a_tiny_temperature_is_greedy_and_overflows_nothing() -> None:
    assert sample(torch.tensor([[1e4, 2e4, -1e4]]), [row(temperature=1e-30)], ()) == [1]


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"top_k": 2}, [0.6, 0.4, 0, 0]),
        ({"top_k": 1}, [1, 0, 0, 0]),
        ({"top_p": 0.6}, [0.6, 0.4, 0, 0]),
        ({"top_p": 0.3}, [1, 0, 0, 0]),
        ({"top_p": 1e-9}, [1, 0, 0, 0]),
        ({"min_p": 0.5}, [0.6, 0.4, 0, 0]),
        ({"top_k": 3, "top_p": 0.5}, [0.6, 0.4, 0, 0]),  # 0.4737 of what three leave: the second crosses
        ({"top_p": 0.96, "min_p": 0.2}, [0.45 / 0.95, 0.3 / 0.95, 0.2 / 0.95, 0]),
    ],
)
def test_truncation(params: dict[str, Any], expected: list[float]) -> None:
    assert counts(logits_of(0.45, 0.3, 0.2, 0.05), **params)[:4] == pytest.approx(expected, abs=0.03)


def test_a_nucleus_wider_than_the_first_candidates_is_complete() -> None:
    """A flat distribution: 0.9 of the mass needs 540 of 600 tokens, and no more than those may come."""
    rows = [row(seed=seed, top_p=0.9) for seed in range(3000)]
    tokens = set(sample(torch.zeros(3000, VOCAB), rows, ()))
    assert max(tokens) == 539
    assert len(tokens) > 500


def test_ties_at_the_cut_go_to_the_lowest_ids() -> None:
    tokens = {sample(torch.zeros(1, VOCAB), [row(seed=seed, top_k=3)], ())[0] for seed in range(100)}
    assert tokens == {0, 1, 2}


def test_a_seeded_request_gives_the_same_tokens_alone_and_in_any_batch() -> None:
    logits = torch.randn(8, VOCAB)
    kinds: list[dict[str, Any]] = [{}, {"top_p": 0.9}, {"top_k": 7}, {"temperature": 0.0}, {"min_p": 0.01}] * 2
    rows = [row(seed=seed, output=tuple(range(seed)), **kinds[seed]) for seed in range(8)]
    together = sample(logits.clone(), rows, ())
    alone = [sample(logits[index : index + 1].clone(), [rows[index]], ())[0] for index in range(8)]
    reversed_order = sample(logits.flip(0).clone(), rows[::-1], ())
    assert together == alone == reversed_order[::-1]


def test_each_position_has_its_own_draw() -> None:
    numbers = [uniform(seed, position) for seed in (0, 1, -1, 2**63) for position in range(50)]
    assert len(set(numbers)) == len(numbers)
    assert all(0 <= number < 1 for number in numbers)
    assert uniform(12, 3) == 0.42799990644036334, "a resumed request must draw as it did on another machine"


def test_penalties_and_bias() -> None:
    def best(values: list[float], **settings: Any) -> int:
        logits = torch.full((1, VOCAB), -50.0)
        logits[0, : len(values)] = torch.tensor(values)
        return sample(logits, [row(temperature=0.0, **settings)], ())[0]

    assert best([2.0, 1.5]) == 0
    assert best([2.0, 1.5], output=(0,), presence_penalty=0.6) == 1
    assert best([2.0, 1.5], output=(0,), frequency_penalty=0.3) == 0
    assert best([2.0, 1.5], output=(0, 0), frequency_penalty=0.3) == 1
    assert best([2.0, 1.5], prompt=(0,), presence_penalty=2.0) == 0, "only what was generated counts"
    assert best([2.0, 1.5], prompt=(0,), repetition_penalty=1.5) == 1
    assert best([-1.0, -1.5], output=(0,), repetition_penalty=2.0) == 1, "a negative logit is pushed down as well"
    assert best([2.0, 1.5], logit_bias={1: 1.0}) == 1
    assert best([2.0, 1.5], logit_bias={0: -100.0}) == 1


def test_bias_and_penalties_of_one_token_add_up() -> None:
    settings: dict[str, Any] = {"presence_penalty": 0.5, "frequency_penalty": 0.25, "logit_bias": {3: 2.0, 7: -1.0}}
    found = adjustment(row(output=(3, 5, 3), prompt=(9,), **settings), VOCAB, ())
    assert found is not None
    assert dict(zip(found.tokens.tolist(), found.amounts.tolist(), strict=True)) == {3: 1.0, 5: -0.75, 7: -1.0}
    assert len(found.tokens) == 3
    assert len(found.seen) == len(found.ends) == 0
    assert adjustment(row(output=(3, 5, 3), prompt=(9,)), VOCAB, {2}) is None


def test_each_prompt_is_its_own() -> None:
    """They are kept by which they are; one that was freed can lie where another is."""
    for token in range(600):
        found = adjustment(row(prompt=[token, token], repetition_penalty=1.1), VOCAB, ())
        assert found is not None
        assert found.seen.tolist() == [token]


def test_tokens_outside_the_vocabulary_change_nothing() -> None:
    settings: dict[str, Any] = {"logit_bias": {VOCAB: 5.0, 1: 1.0}, "repetition_penalty": 2.0, "min_tokens": 9}
    found = adjustment(row(output=(VOCAB,), prompt=(-1, 4), **settings), VOCAB, {2, VOCAB, 1 << 40})
    assert found is not None
    assert (found.seen.tolist(), found.tokens.tolist(), found.ends.tolist()) == ([4], [1], [2])


def test_end_tokens_wait_for_min_tokens() -> None:
    logits = torch.zeros(1, VOCAB)
    logits[0, 2], logits[0, 9], logits[0, 5] = 9.0, 8.0, 7.0
    early = row(output=(1,), temperature=0.0, min_tokens=2, stop_token_ids=(9,))
    assert sample(logits.clone(), [early], {2}) == [5]
    assert sample(logits.clone(), [replace(early, output=(1, 1))], {2}) == [2]


def test_a_neighbours_penalties_do_not_reach_my_row() -> None:
    logits = torch.zeros(2, VOCAB)
    logits[:, 4] = 1.0
    rows = [row(temperature=0.0), row(output=(4,), temperature=0.0, presence_penalty=2.0)]
    assert sample(logits, rows, ()) == [4, 0]
