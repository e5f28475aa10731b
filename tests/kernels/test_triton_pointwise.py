"""DoRA's gains and the embedding's LoRA as Triton kernels, against the formula in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import sgmv.ops
from sgmv import EmbeddingSite, EmbeddingWeights, Gain, GainRows, Plan, SgmvArgumentError, Storage
from sgmv.ops import make_embedding, make_gain
from sgmv.triton_embedding import TritonEmbeddingSite
from sgmv.triton_gain import TritonGain

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SLOTS = [2, -1, 0, 2, 5, 0, -1, 3, 900]
ROWS = len(SLOTS)
# of the largest number: what rounding y to the type costs
TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
everywhere = pytest.mark.parametrize("dtype", TOLERANCE, ids=lambda dtype: str(dtype).removeprefix("torch."))


def randn(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def gain(width: int, dtype: torch.dtype, bias: Tensor | None = None) -> tuple[TritonGain, dict[int, Tensor]]:
    """With gains in slots 0 and 2; slot 5's adapter has none at this site."""
    site = TritonGain(width, bias, device=DEVICE, dtype=dtype)
    excess = {slot: randn(width, seed=slot, dtype=dtype) for slot in (0, 2)}
    for slot, own in excess.items():
        site.set(slot, own)
    site.set(5, None)
    return site, excess


def amplified(site: Gain, y: Tensor, slots: list[int], residual: Tensor | None = None) -> Tensor:
    found, chosen = y.clone(), GainRows.of(Plan(slots), site.held, DEVICE)
    if chosen is not None:
        site.apply(found, chosen, residual)
    return found


def close(found: Tensor, expected: Tensor, dtype: torch.dtype) -> bool:
    error = (found.double() - expected).abs().max().item()
    return error <= TOLERANCE[dtype] * max(1.0, expected.abs().max().item())


@everywhere
@pytest.mark.parametrize("width", [1, 7, 64, 1500])
@pytest.mark.parametrize(("biased", "added"), [(False, False), (True, False), (False, True), (True, True)])
def test_rows_are_scaled_by_their_own_slots_gain(width: int, biased: bool, added: bool, dtype: torch.dtype) -> None:
    bias = randn(width, seed=10, dtype=dtype) if biased else None
    site, excess = gain(width, dtype, bias)
    y, residual = randn(ROWS, width, seed=11, dtype=dtype), randn(ROWS, width, seed=12, dtype=dtype)
    found = amplified(site, y, SLOTS, residual if added else None)
    for row, slot in enumerate(SLOTS):
        if slot not in excess:
            assert torch.equal(found[row], y[row]), f"row {row} of slot {slot}"
            continue
        product = y[row].double()
        if bias is not None:
            product = product - bias.double()
        if added:
            product = product - residual[row].double()
        assert close(found[row], y[row].double() + excess[slot].double() * product, dtype)


@everywhere
def test_gains_agree_with_torchs_operations(dtype: torch.dtype) -> None:
    site, excess = gain(70, dtype)
    plain = Gain(70, None, device=DEVICE, dtype=dtype)
    for slot, own in excess.items():
        plain.set(slot, own)
    y = randn(ROWS, 70, seed=3, dtype=dtype)
    assert close(amplified(site, y, SLOTS), amplified(plain, y, SLOTS).double(), dtype)


@pytest.mark.filterwarnings("ignore:invalid value", "ignore:overflow")  # numpy's, in the interpreter
@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_a_poisoned_gain_reaches_its_own_rows_alone(poison: float) -> None:
    site, _ = gain(40, torch.float32)
    y = randn(ROWS, 40, seed=4)
    clean = amplified(site, y, SLOTS)
    site.set(2, torch.full((40,), poison))
    dirty = amplified(site, y, SLOTS)
    for row, slot in enumerate(SLOTS):
        if slot == 2:
            assert not dirty[row].isfinite().any()
        else:
            assert torch.equal(dirty[row], clean[row])


def test_a_gained_rows_bits_are_the_same_alone_and_in_any_batch() -> None:
    site, _ = gain(300, torch.bfloat16)
    slots = [SLOTS[row % ROWS] for row in range(70)]
    y = randn(70, 300, seed=5, dtype=torch.bfloat16)
    whole = amplified(site, y, slots)
    for rows in (1, 3, 33):
        assert torch.equal(amplified(site, y[:rows], slots[:rows]), whole[:rows])
    assert all(torch.equal(amplified(site, y, slots), whole) for _ in range(3))


def test_gains_that_went_leave_nothing_and_more_slots_find_room() -> None:
    site, _ = gain(40, torch.float32)
    y = randn(2, 40, seed=6)
    site.set(100, torch.ones(40))
    torch.testing.assert_close(amplified(site, y, [100, 0])[0], 2 * y[0])
    site.clear(100)
    site.clear(700)
    assert torch.equal(amplified(site, y, [100, 100]), y)
    site.set(2, None)
    assert torch.equal(amplified(site, y, [2, 2]), y)
    assert set(site.held) == {0, 2, 5}
    for slot in (0, 2, 5):
        site.clear(slot)
    assert site.num_bytes == 0


def test_parts_of_wider_tensors() -> None:
    site, _ = gain(40, torch.float32)
    wide, residual = randn(ROWS, 50, seed=7), randn(ROWS, 60, seed=8)
    expected = amplified(site, wide[:, 3:43].contiguous(), SLOTS, residual[:, 20:].contiguous())
    before = wide.clone()
    chosen = GainRows.of(Plan(SLOTS), site.held, DEVICE)
    assert chosen is not None
    site.apply(wide[:, 3:43], chosen, residual[:, 20:])
    assert torch.equal(wide[:, 3:43], expected)
    assert torch.equal(wide[:, :3], before[:, :3])
    assert torch.equal(wide[:, 43:], before[:, 43:])


def test_what_does_not_fit_a_gain_is_refused_by_name() -> None:
    site = TritonGain(40, None, device=DEVICE, dtype=torch.float32, storage=Storage(slots=4))
    site.set(0, torch.ones(40))
    chosen = GainRows.of(Plan([0, 0]), site.held, DEVICE)
    assert chosen is not None
    y = randn(2, 40, seed=1)
    wrong: list[tuple[Tensor, Tensor | None, str]] = [
        (y[:1], None, "y"),
        (y.half(), None, "y"),
        (randn(40, 2, seed=1).t(), None, "y"),
        (y, y[:, :39], "residual"),
    ]
    for given, residual, argument in wrong:
        with pytest.raises(SgmvArgumentError) as refused:
            site.apply(given, chosen, residual)
        assert refused.value.argument == argument
    for slot, excess, argument in ((4, torch.ones(40), "slot"), (-1, None, "slot"), (1, torch.ones(39), "excess")):
        with pytest.raises(SgmvArgumentError) as refused:
            site.set(slot, excess)
        assert refused.value.argument == argument
    assert set(site.held) == {0}


RANKS = {0: 3, 2: 16, 5: 17, 3: 64}


def embedding(
    hidden: int, dtype: torch.dtype = torch.float32, vocabulary: int = 101, kind: type[EmbeddingSite] | None = None
) -> tuple[EmbeddingSite, dict[int, EmbeddingWeights]]:
    site = (kind or TritonEmbeddingSite)(vocabulary, hidden, device=DEVICE, dtype=dtype)
    weights = {
        slot: EmbeddingWeights(
            randn(vocabulary, rank, seed=slot, dtype=dtype),
            randn(rank, hidden, seed=50 + slot, dtype=dtype) / rank**0.5,
        )
        for slot, rank in RANKS.items()
    }
    for slot, own in weights.items():
        site.set(slot, own)
    return site, weights


def embedded(site: EmbeddingSite, tokens: Tensor, slots: list[int]) -> Tensor:
    y = torch.zeros(len(slots), site.hidden, device=DEVICE, dtype=site.dtype)
    site.apply(y, tokens, Plan(slots))
    return y


def some_tokens(count: int, vocabulary: int = 101) -> Tensor:
    return torch.randint(vocabulary, (count,), generator=torch.Generator().manual_seed(count)).to(DEVICE)


@everywhere
@pytest.mark.parametrize("hidden", [6, 64, 200])
def test_each_token_is_embedded_with_its_own_slots_matrices(hidden: int, dtype: torch.dtype) -> None:
    site, weights = embedding(hidden, dtype)
    slots = [SLOTS[row % ROWS] for row in range(40)]
    tokens = some_tokens(40)
    found = embedded(site, tokens, slots)
    for row, slot in enumerate(slots):
        if slot in weights:
            own = weights[slot]
            assert close(found[row], own.a[tokens[row]].double() @ own.b.double(), dtype)
        else:
            assert not found[row].any()


def test_embeddings_agree_with_torchs_operations_and_take_both_kinds_of_integers() -> None:
    site, _ = embedding(64)
    plain, _ = embedding(64, kind=EmbeddingSite)
    tokens = some_tokens(ROWS)
    found = embedded(site, tokens, SLOTS)
    torch.testing.assert_close(found, embedded(plain, tokens, SLOTS), atol=1e-5, rtol=1e-5)
    assert torch.equal(found, embedded(site, tokens.int(), SLOTS))


@pytest.mark.filterwarnings("ignore:invalid value", "ignore:overflow")
@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_a_poisoned_embedding_reaches_its_own_rows_alone(poison: float) -> None:
    site, weights = embedding(64)
    slots, tokens = [2, 0, 2, 0, -1, 5], some_tokens(6)
    clean = embedded(site, tokens, slots)
    site.set(2, EmbeddingWeights(torch.full_like(weights[2].a, poison), torch.full_like(weights[2].b, poison)))
    dirty = embedded(site, tokens, slots)
    for row, slot in enumerate(slots):
        assert torch.equal(dirty[row], clean[row]) or (slot == 2 and not dirty[row].isfinite().any())


def test_rows_outside_any_slot_and_tokens_that_are_none_are_not_touched() -> None:
    site, _ = embedding(64)
    tokens = some_tokens(ROWS)
    tokens[0], tokens[3] = -1, 101
    y = torch.full((ROWS, 64), float("nan"), device=DEVICE)
    own = [row for row, slot in enumerate(SLOTS) if slot in RANKS and row not in (0, 3)]
    y[own] = 0
    site.apply(y, tokens, Plan(SLOTS))
    assert y[own].isfinite().all()
    assert y[[row for row in range(ROWS) if row not in own]].isnan().all()


def test_an_embedded_rows_bits_are_the_same_alone_and_in_any_batch() -> None:
    site, _ = embedding(64, torch.bfloat16)
    slots, tokens = [SLOTS[row % ROWS] for row in range(70)], some_tokens(70)
    whole = embedded(site, tokens, slots)
    for rows in (1, 17, 33):
        assert torch.equal(embedded(site, tokens[:rows], slots[:rows]), whole[:rows])
    assert all(torch.equal(embedded(site, tokens, slots), whole) for _ in range(3))


def test_an_embedding_that_went_leaves_nothing() -> None:
    site, weights = embedding(64)
    tokens = some_tokens(2)
    site.set(40, weights[0])
    assert torch.equal(embedded(site, tokens, [40, 40]), embedded(site, tokens, [0, 0]))
    for slot in (*RANKS, 40, 41):
        site.clear(slot)
    assert not embedded(site, tokens, [40, 0]).any()
    assert site.num_bytes == 0


def test_what_does_not_fit_an_embedding_is_refused_by_name() -> None:
    site = TritonEmbeddingSite(11, 8, device=DEVICE, dtype=torch.float32, storage=Storage(slots=2, max_rank=4))
    y, tokens = torch.zeros(2, 8, device=DEVICE), torch.zeros(2, dtype=torch.int64, device=DEVICE)
    wrong = [
        (y[:1], tokens, "y"),
        (y.half(), tokens, "y"),
        (torch.zeros(8, 2, device=DEVICE).t(), tokens, "y"),
        (y, tokens[:1], "tokens"),
        (y, tokens.float(), "tokens"),
        (y, torch.zeros(4, dtype=torch.int64, device=DEVICE)[::2], "tokens"),
    ]
    for given, ids, argument in wrong:
        with pytest.raises(SgmvArgumentError) as refused:
            site.apply(given, ids, Plan([0, 0]))
        assert refused.value.argument == argument
    for slot, rank, argument in ((2, 4, "slot"), (-1, 4, "slot"), (0, 5, "weights.a[0]")):
        with pytest.raises(SgmvArgumentError) as refused:
            site.set(slot, EmbeddingWeights(torch.zeros(11, rank), torch.zeros(rank, 8)))
        assert refused.value.argument == argument
    assert site.num_bytes == 0


def test_the_device_chooses_the_kind() -> None:
    """As for sites. That a CUDA device gets these kernels can be asked without one."""
    place: dict[str, Any] = {"device": "cpu", "dtype": torch.float32}
    assert type(make_gain(4, None, **place)) is Gain
    assert type(make_embedding(4, 4, **place)) is EmbeddingSite
    for dtype in TOLERANCE:
        assert sgmv.ops._gain_kind("cuda", dtype) is TritonGain
        assert sgmv.ops._embedding_kind("cuda:1", dtype) is TritonEmbeddingSite
    assert sgmv.ops._gain_kind("cuda", torch.float64) is Gain
    assert sgmv.ops._embedding_kind("cuda", torch.float64) is EmbeddingSite
