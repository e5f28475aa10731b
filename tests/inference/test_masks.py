"""Masks over logits: exactly what is allowed stays, of the rows that have a mask in time."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from inference.core.step import Row
from inference.masks import apply_masks
from tests.inference.no_waiting import no_waiting, numberless


class Allowed:
    """Tokens of a vocabulary; ``None``: not known in time."""

    def __init__(self, tokens: list[int] | None, vocab: int) -> None:
        self._tokens, self._words = tokens, -(-vocab // 32)

    def take(self, seconds: float) -> bytes | None:
        if self._tokens is None:
            return None
        bits = np.zeros(32 * self._words, bool)
        bits[self._tokens] = True
        return np.packbits(bits, bitorder="little").tobytes()


def rows_of(vocab: int, *masks: list[int] | bool | None) -> list[Row]:
    """``True``: no mask. ``None``: a late one."""
    return [Row([1], 0, [0], mask=None if mask is True else Allowed(mask or None, vocab)) for mask in masks]


@pytest.mark.parametrize("vocab", [7, 31, 32, 33, 600])
@pytest.mark.parametrize("masks", [([0, 5], [6]), ([0, 5], True, [6], None), (True, [3]), (True, None), (True, True)])
def test_what_is_not_allowed_cannot_be_chosen(vocab: int, masks: tuple[list[int] | bool | None, ...]) -> None:
    logits = torch.randn(len(masks), vocab)
    given = logits.clone()
    late = apply_masks(given, rows_of(vocab, *masks))
    assert late == {index for index, mask in enumerate(masks) if mask is None}
    for index, mask in enumerate(masks):
        expected = logits[index].clone()
        if isinstance(mask, list):
            expected[[token for token in range(vocab) if token not in mask]] = float("-inf")
        assert torch.equal(given[index], expected)


@pytest.mark.parametrize("masks", [([0, 5], [6]), ([0, 5], True, None)])
def test_the_host_waits_for_masks_and_not_for_the_device(masks: tuple[list[int] | bool | None, ...]) -> None:
    rows = rows_of(33, *masks)
    with no_waiting():
        apply_masks(numberless(len(rows), 33), rows)
