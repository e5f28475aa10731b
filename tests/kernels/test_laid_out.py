"""Matrices that were laid out before are the same to a site as those that it lays out itself."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from sgmv import FP8, LaidOut, Plan, SgmvArgumentError, SlotWeights, Storage, laid_bytes
from sgmv.cpu import CpuSite
from sgmv.slot_table import SlotTable
from sgmv.torch_site import TorchSite
from sgmv.triton_site import TritonSite
from tests.kernels.test_sites import weights

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
DTYPES = (torch.float32, torch.bfloat16)
IN, SLICES, SLOTS = 40, (48, 17, 16), [0, 1, -1, 1, 0]
RANKS = {0: [(16, 3, 8), (5, 0, 1)], 1: [(4, 0, 33), (0, 2, 0)]}
"""Of each slot the ranks that it has first, and those that come after."""
KINDS = [(kind, fp8, dtype) for kind in (TorchSite, TritonSite) for fp8 in (None, FP8) for dtype in DTYPES]
if DEVICE.type == "cpu":
    KINDS.append((CpuSite, None, torch.float32))


def laid(own: SlotWeights, held: torch.dtype) -> LaidOut:
    """In memory that held something else: NaN in every type."""
    return LaidOut.of(own, held, torch.full((laid_bytes(own, held),), 255, dtype=torch.uint8))


def delta(site: TorchSite, slots: Sequence[int]) -> Tensor:
    x = torch.randn(len(slots), IN, generator=torch.Generator().manual_seed(3)).to(DEVICE, site.dtype)
    y = torch.zeros(len(slots), sum(SLICES), dtype=site.dtype, device=DEVICE)
    site.apply(y, x, Plan(slots))
    return y


@pytest.mark.parametrize(("kind", "fp8", "dtype"), KINDS)
def test_a_site_computes_the_same_bits(kind: type[TorchSite], fp8: torch.dtype | None, dtype: torch.dtype) -> None:
    """Also where a slot was another adapter's, of larger ranks."""
    plain, given = (kind(IN, SLICES, DEVICE, dtype, Storage(dtype=fp8)) for _ in range(2))
    for turn in range(2):
        for slot, ranks in RANKS.items():
            own = weights(2 * turn + slot, ranks[turn], SLICES, IN, dtype)
            plain.set(slot, own)
            given.set(slot, laid(own, given.held))
        found = delta(given, SLOTS)
        assert torch.equal(found, delta(plain, SLOTS))
        assert found[[0, 1, 3, 4]].abs().amax(1).min() > 0
        assert given.num_bytes == plain.num_bytes
    given.clear(0)
    assert not delta(given, SLOTS)[[0, 4]].any()


def test_what_is_on_the_device_is_taken_as_it_is() -> None:
    site, own = TritonSite(IN, SLICES, DEVICE, torch.float32), weights(0, (4, 0, 5), SLICES, IN)
    there = laid(own, torch.float32)
    there = there.on(there.memory.to(DEVICE))
    site.set(0, there)
    assert site._operands[0]._memory.data_ptr() == there.memory.data_ptr()


def test_what_was_laid_out_in_another_type_is_refused() -> None:
    site, own = TorchSite(IN, SLICES, DEVICE, torch.float32), weights(0, (4, 0, 5), SLICES, IN)
    site.set(0, own)
    before = delta(site, SLOTS)
    for held in (FP8, torch.bfloat16):
        with pytest.raises(SgmvArgumentError, match=r"the site holds torch\.float32"):
            site.set(0, laid(own, held))
    assert torch.equal(delta(site, SLOTS), before)


def test_an_empty_slot_is_not_cleared_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time would be a launch: for hundreds of sites, while every request waits."""
    cleared = []
    zero = Tensor.zero_
    monkeypatch.setattr(Tensor, "zero_", lambda own: (cleared.append(own.shape), zero(own))[1])
    table = SlotTable(3, Storage(slots=4, max_rank=8), DEVICE)
    table.drop(2)
    table.put(2, [1, 2, 3])
    table.put(2, [4, 5, 6])
    assert not cleared
    for _ in range(2):
        table.drop(2)
    assert len(cleared) == 1
    assert not table.numbers.any()
