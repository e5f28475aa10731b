"""Storage reaches every place where adapters act, and a step of a fixed plan is one whatever its rows are."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import sgmv.ops
from inference.models.decoder import Decoder
from inference.models.loader import load_decoder
from sgmv import FP8, FixedPlan, Plan, SgmvArgumentError, SlotWeights, StepNumbers, Storage, triton_site
from sgmv.triton_site import TritonSite
from tests.inference.tiny_model import build_tiny_model

CPU = torch.device("cpu")
ROWS = 5


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    directory = build_tiny_model(tmp_path_factory.mktemp("step") / "tiny")
    storage = Storage(slots=3, max_rank=256, dtype=FP8)
    return load_decoder(directory, positions=64, device=CPU, dtype=torch.float32, storage=storage)


def filled(slots: list[int]) -> FixedPlan:
    numbers = StepNumbers((FixedPlan.size(ROWS),), CPU)
    plan = FixedPlan(ROWS, numbers.parts[0])
    plan.fill(slots, numbers.begin()[0])
    numbers.copy()
    return plan


def test_every_place_has_the_storage_that_was_asked_for(decoder: Decoder) -> None:
    sites = decoder.sites
    places = [sites.head, *(site for layer in sites.layers for site in layer.values())]
    for holder in (*(site.gain for site in places), sites.embedding):
        assert holder._storage == Storage(slots=3, max_rank=256, dtype=FP8)
    for site in places:
        assert isinstance(site.lora, sgmv.ops.TorchSite)
        assert site.lora.storage == Storage(slots=3, max_rank=256, dtype=FP8)
        with pytest.raises(SgmvArgumentError, match="there are 3"):
            site.gain.set(3, None)


def test_a_fixed_plan_has_a_step_though_no_row_has_an_adapter(decoder: Decoder) -> None:
    sites, slots = decoder.sites, [-1] * ROWS
    assert sites.begin(Plan(slots), CPU) is None
    assert sites.begin_head(Plan(slots), CPU) is None
    assert sites.begin_head(slots, CPU) is None
    for gains in (None, False, True):
        for step in (sites.begin(filled(slots), CPU, gains), sites.begin_head(filled(slots), CPU, gains)):
            assert step is not None
            assert (step.gained is not None) == (gains is True)


def test_gains_where_they_are_asked_for_or_needed(decoder: Decoder) -> None:
    sites, slots = decoder.sites, [1, -1, 2]
    plan = Plan(slots)
    assert not sites.gained(plan)
    sites.head.gain.set(2, None)
    assert sites.gained(plan)
    assert not sites.gained(Plan([0, 1, -1]))
    for layer in sites.layers:
        for site in layer.values():
            site.gain.set(1, None)
    assert sites.gained(Plan([1]))
    for gains in (None, False, True):
        step, head = sites.begin(plan, CPU, gains), sites.begin_head(plan, CPU, gains)
        assert step is not None
        assert head is not None
        assert (step.gained is None) == (head.gained is None) == (gains is False)
    for place in (sites.head, *(site for layer in sites.layers for site in layer.values())):
        place.gain.clear(1)
        place.gain.clear(2)


@pytest.mark.skipif(torch.cuda.is_available(), reason="looks at what is allocated, in the interpreter")
@pytest.mark.parametrize("fp8", [False, True])
def test_room_for_the_largest_rank_is_taken_by_fixed_plans_alone(monkeypatch: pytest.MonkeyPatch, fp8: bool) -> None:
    """And changes no bit."""
    storage = Storage(slots=3, max_rank=256, dtype=FP8 if fp8 else None)
    site = TritonSite(64, (16, 16), CPU, torch.float32, storage)
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(8, 64, generator=generator), torch.randn(16, 8, generator=generator)
    site.set(1, SlotWeights((a, None), (b, None), (0.5, 0.0)))
    x = torch.randn(ROWS, 64, generator=generator)
    made: list[int] = []
    whole = torch.empty

    def noted(*size: int, **kind: object) -> Tensor:
        if len(size) == 4:  # h
            made.append(size[-1])
        return whole(*size, **kind)  # type: ignore[call-overload, no-any-return]

    monkeypatch.setattr(triton_site.torch, "empty", noted)
    found = []
    for plan in (Plan([1, -1, 1, 1, -1]), filled([1, -1, 1, 1, -1])):
        y = torch.zeros(ROWS, 32)
        site.apply(y, x, plan)
        found.append(y)
    assert torch.equal(*found)
    assert found[0].any()
    assert made == [16, 256]
