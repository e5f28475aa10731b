"""The most likely token, against torch."""

from __future__ import annotations

import pytest
import torch

from inference.greedy import most_likely

pytestmark = pytest.mark.usefixtures("threads")


@pytest.mark.parametrize("rows", [1, 2, 16, 70])
@pytest.mark.parametrize("width", [1, 3, 1023, 1024, 1025, 49152])
def test_as_torch_finds_it(rows: int, width: int) -> None:
    torch.manual_seed(rows * width)
    logits = torch.randn(rows, width)
    assert most_likely(logits) == logits.argmax(dim=1).tolist()
    assert most_likely(logits.t().contiguous().t()) == logits.argmax(dim=1).tolist()


def test_the_first_of_equals_and_masked_tokens() -> None:
    logits = torch.full((5, 5000), float("-inf"))
    logits[0, [7, 3000]] = 1.0
    logits[1, [4096, 4097]] = -5.0
    logits[2, 4999] = -1e30
    logits[3, 0], logits[3, 2000] = -0.0, 0.0
    logits[4, 1500] = float("inf")
    assert most_likely(logits) == [7, 4096, 4999, 0, 1500]
    assert most_likely(torch.full((1, 9), float("-inf"))) == [0]


def test_what_is_no_number_still_gives_a_token_and_concerns_its_own_row_alone() -> None:
    logits = torch.randn(3, 3000)
    expected = logits.argmax(dim=1).tolist()
    logits[1] = float("nan")
    found = most_likely(logits)
    assert [found[0], found[2]] == [expected[0], expected[2]]
    assert 0 <= found[1] < 3000
    logits[1, 5:] = 1.0
    assert 0 <= most_likely(logits)[1] < 3000


def test_other_types() -> None:
    logits = torch.randn(4, 100)
    assert most_likely(logits.double()) == logits.argmax(dim=1).tolist()
    assert most_likely(torch.empty(0, 100)) == []
