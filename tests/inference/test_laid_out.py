"""Adapters as a GPU's readers lay them out, here loaded into a CPU's slots."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import inference.adapters.laid_out
from inference.adapters.host import HostAdapter
from inference.adapters.laid_out import laid_out, moved
from inference.adapters.part import part_of
from inference.adapters.slots import AdapterSlots
from inference.model_config import ModelConfig
from inference.parallel.shard import Shard
from inference.runner import TorchRunner
from sgmv import LaidOut
from tests.inference.runs import logits_of
from tests.inference.test_adapter_kinds import KINDS, save_adapter
from tests.inference.tiny_model import build_tiny_model

ORDER = ("all linears", "dora", "embedding, head and linears", "some linears", "dora, head, rank-stabilised")
TOKENS = list(range(20, 60))


def prepared(slots: AdapterSlots, adapter: HostAdapter) -> HostAdapter:
    """As on a GPU."""
    return laid_out(adapter, slots._sites.head.lora.held, pinned=False)


@pytest.mark.parametrize("piece", [20_000, 4 << 20])
@pytest.mark.parametrize("adapters", ["full", "fp8"])
def test_slots_hold_the_same_in_whatever_order_adapters_come(
    adapters: str, piece: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each in a slot that another had before, which had other sites."""
    monkeypatch.setattr(inference.adapters.laid_out, "_PIECE", piece)
    model_dir = build_tiny_model(tmp_path / "tiny")
    sources = [save_adapter(model_dir, tmp_path / str(seed), seed, KINDS[kind]) for seed, kind in enumerate(ORDER)]
    sizes = {"num_blocks": 8, "num_slots": 2, "max_model_len": 64}
    plain, given = (TorchRunner.load(model_dir, **sizes, adapters=adapters) for _ in range(2))
    expected = [plain.read_adapter(source) for source in sources]
    assert all(adapter.memory is None for adapter in expected), "a CPU's slots lay out themselves"
    monkeypatch.setattr(AdapterSlots, "prepared", prepared)
    for slot in (0, 1, 1):
        for source, whole in zip(sources, expected, strict=True):
            adapter = given.read_adapter(source)
            assert adapter.memory is not None
            plain.load_adapter(slot, whole)
            given.load_adapter(slot, adapter)
            ours, theirs = (logits_of(runner, TOKENS, [30, 10], range(8), slot) for runner in (given, plain))
            assert torch.equal(ours, theirs)
            assert given._slots.num_bytes == plain._slots.num_bytes
    for slot in (0, 1):
        given.clear_slot(slot)
    assert given._slots.num_bytes == 0


@pytest.mark.parametrize("piece", [1, 20_000, 4 << 20])
@pytest.mark.parametrize("kind", ORDER)
def test_its_size_is_that_of_the_memory_it_has(
    kind: str, piece: int, tiny_model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In pieces of one site each, of several, and of all."""
    monkeypatch.setattr(inference.adapters.laid_out, "_PIECE", piece)
    runner = TorchRunner.load(tiny_model_dir, num_blocks=1, num_slots=1, max_model_len=16)
    whole = runner.read_adapter(save_adapter(tiny_model_dir, tmp_path / "a", 0, KINDS[kind]))
    adapter = prepared(runner._slots, whole)
    sites = [weights for layer in adapter.layers for weights in layer.sites.values()]
    laid = [weights for weights in (*sites, adapter.head) if weights is not None]
    assert adapter.memory is not None
    if piece != 20_000:
        assert len(adapter.memory) == (len(laid) if piece == 1 else 1)
    storages = {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in adapter.memory}
    for weights in laid:
        assert isinstance(weights, LaidOut)
        assert weights.memory.untyped_storage().data_ptr() in storages
    assert all(size.bit_count() == 1 for size in storages.values()), "torch would ask for as much"
    matrices = sum(m.nbytes for weights in laid for m in (*weights.a, *weights.b) if m is not None)
    rest = whole.held_bytes - matrices
    assert adapter.held_bytes == sum(storages.values()) + rest
    assert adapter.slot_bytes == sum(each.nbytes for each in adapter.memory) + rest
    gap = 16 * 6 + 128  # before a matrix of the three slices of a site, and before a site
    assert whole.held_bytes == whole.slot_bytes <= adapter.slot_bytes <= whole.slot_bytes + gap * len(laid)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_part_is_laid_out_as_it_was_cut(rank: int, tiny_model_dir: Path, tmp_path: Path) -> None:
    runner = TorchRunner.load(tiny_model_dir, num_blocks=1, num_slots=1, max_model_len=16)
    source = save_adapter(tiny_model_dir, tmp_path / "a", 0, KINDS["embedding, head and linears"])
    part = part_of(runner.read_adapter(source), ModelConfig.load(tiny_model_dir), Shard(rank, 2))
    laid = prepared(runner._slots, part)
    for adapter in (laid, moved(laid, torch.device("cpu"))):
        for layer, own in zip(adapter.layers, part.layers, strict=True):
            for name, weights in own.sites.items():
                assert layer.sites[name].scaling == weights.scaling
                found = layer.sites[name]
                for ours, theirs in zip((*found.a, *found.b), (*weights.a, *weights.b), strict=True):
                    assert (ours is None) == (theirs is None)
                    assert ours is None or theirs is None or torch.equal(ours, theirs)
