"""DoRA's gains and the embedding's adapters: the formula, row by row, and nothing of one slot in another's rows."""

from __future__ import annotations

import pytest
import torch

from sgmv import EmbeddingSite, EmbeddingWeights, Gain, GainRows, Plan, SgmvArgumentError

CPU = torch.device("cpu")
SLOTS = [2, -1, 0, 2, 5, 0, -1, 3]


def gain(bias: torch.Tensor | None, dtype: torch.dtype = torch.float32) -> tuple[Gain, dict[int, torch.Tensor]]:
    """With gains in slots 0, 2 and 5; slot 5's adapter has none at this site."""
    site = Gain(7, bias, device=CPU, dtype=dtype)
    excess = {slot: torch.randn(7, dtype=dtype) for slot in (2, 0)}
    for slot, values in excess.items():
        site.set(slot, values)
    site.set(5, None)
    return site, excess


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("added", [False, True])
def test_rows_are_scaled_by_their_own_slots_gain(biased: bool, added: bool) -> None:
    torch.manual_seed(0)
    bias = torch.randn(7, dtype=torch.float64) if biased else None
    site, excess = gain(bias, torch.float64)
    product, residual = torch.randn(8, 7, dtype=torch.float64), torch.randn(8, 7, dtype=torch.float64)
    rest = (0 if bias is None else bias) + (residual if added else 0)
    y = product + rest
    chosen = GainRows.of(Plan(SLOTS), site.held, CPU)
    assert chosen is not None
    site.apply(y, chosen, residual if added else None)
    for row, slot in enumerate(SLOTS):
        scale = 1 + excess[slot] if slot in excess else 1
        torch.testing.assert_close(y[row], product[row] * scale + (rest[row] if added else rest))


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_other_rows_keep_every_bit(poison: float) -> None:
    torch.manual_seed(0)
    site, _ = gain(None)
    site.set(2, torch.full((7,), poison))
    before = torch.randn(8, 7)
    y = before.clone()
    chosen = GainRows.of(Plan(SLOTS), site.held, CPU)
    assert chosen is not None
    site.apply(y, chosen)
    own = [row for row, slot in enumerate(SLOTS) if slot == 2]
    assert not y[own].isfinite().any()
    for row, slot in enumerate(SLOTS):
        if slot not in (0, 2):
            assert torch.equal(y[row], before[row])
        elif slot == 0:
            assert y[row].isfinite().all()


def test_no_rows_with_gains_is_no_work_and_a_cleared_slot_leaves_nothing() -> None:
    site, _ = gain(None)
    assert GainRows.of(Plan([-1, 3, 7]), site.held, CPU) is None
    site.clear(2)
    assert set(site.held) == {0, 5}
    site.clear(0)
    site.clear(5)
    assert site.num_bytes == 0
    assert GainRows.of(Plan(SLOTS), site.held, CPU) is None
    with pytest.raises(SgmvArgumentError, match="excess"):
        site.set(0, torch.ones(6))


def embedding() -> tuple[EmbeddingSite, dict[int, EmbeddingWeights]]:
    site = EmbeddingSite(11, 6, device=CPU, dtype=torch.float64)
    weights = {
        slot: EmbeddingWeights(torch.randn(11, rank, dtype=torch.float64), torch.randn(rank, 6, dtype=torch.float64))
        for slot, rank in ((0, 3), (2, 8))
    }
    for slot, own in weights.items():
        site.set(slot, own)
    return site, weights


def test_each_token_is_embedded_with_its_own_slots_matrices() -> None:
    torch.manual_seed(0)
    site, weights = embedding()
    before, tokens = torch.randn(8, 6, dtype=torch.float64), torch.randint(11, (8,))
    y = before.clone()
    site.apply(y, tokens, Plan(SLOTS))
    for row, slot in enumerate(SLOTS):
        if slot in weights:
            torch.testing.assert_close(y[row], before[row] + weights[slot].a[tokens[row]] @ weights[slot].b)
        else:
            assert torch.equal(y[row], before[row])


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_a_poisoned_embedding_reaches_its_own_rows_alone(poison: float) -> None:
    torch.manual_seed(0)
    site, weights = embedding()
    before, tokens = torch.randn(8, 6, dtype=torch.float64), torch.randint(11, (8,))
    expected = before.clone()
    site.apply(expected, tokens, Plan(SLOTS))
    site.set(2, EmbeddingWeights(torch.full_like(weights[2].a, poison), weights[2].b))
    y = before.clone()
    site.apply(y, tokens, Plan(SLOTS))
    others = [row for row, slot in enumerate(SLOTS) if slot != 2]
    assert torch.equal(y[others], expected[others])
    assert not y[[row for row, slot in enumerate(SLOTS) if slot == 2]].isfinite().all()


def test_an_embedding_that_does_not_fit_is_refused_and_changes_nothing() -> None:
    site, weights = embedding()
    held = site.num_bytes
    for wrong in (
        EmbeddingWeights(torch.zeros(10, 3), torch.zeros(3, 6)),
        EmbeddingWeights(torch.zeros(11, 3), torch.zeros(3, 5)),
        EmbeddingWeights(torch.zeros(11, 3), torch.zeros(4, 6)),
    ):
        with pytest.raises(SgmvArgumentError, match="weights"):
            site.set(0, wrong)
    assert site.num_bytes == held == sum(own.num_bytes for own in weights.values())
    site.clear(0)
    site.clear(2)
    site.clear(7)
    assert site.num_bytes == 0
