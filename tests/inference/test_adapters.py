"""Adapters on their way into the slots, and what a runner holds while its batches change."""

from __future__ import annotations

import gc
import random
from pathlib import Path

import pytest
import torch

from inference.adapters.host import HostAdapter
from inference.adapters.slots import AdapterSlots
from inference.core.step import Row
from inference.protocol import SamplingParams
from inference.runner import TorchRunner
from sgmv import Plan, Site, SlotWeights, make_site

GREEDY = SamplingParams(temperature=0.0)


def sites() -> list[dict[str, Site]]:
    return [{"qkv": make_site(6, (4, 2, 2)), "o": make_site(4, (6,))} for _ in range(2)]


def adapter(seed: int, rank: int, *names: str) -> HostAdapter:
    generator = torch.Generator().manual_seed(seed)
    shapes = {"qkv": (6, (4, 2, 2)), "o": (4, (6,))}

    def site(name: str) -> SlotWeights:
        inputs, outputs = shapes[name]
        return SlotWeights(
            tuple(torch.randn(rank, inputs, generator=generator) for _ in outputs),
            tuple(torch.randn(width, rank, generator=generator) for width in outputs),
            tuple(1.0 for _ in outputs),
        )

    return HostAdapter(tuple({name: site(name) for name in names} for _ in range(2)), 0, rank)


def delta(layer: dict[str, Site], name: str, slot: int) -> torch.Tensor:
    site = layer[name]
    y = torch.zeros(1, sum(site.slices))
    site.apply(y, torch.ones(1, site.in_features), Plan([slot]))
    return y


def test_a_replaced_slot_keeps_nothing_where_the_new_adapter_is_silent() -> None:
    layers = sites()
    slots = AdapterSlots(layers, 2)
    slots.load(1, adapter(0, 4, "qkv", "o"))
    assert all(delta(layer, name, 1).any() for layer in layers for name in layer)
    slots.load(1, adapter(1, 9, "qkv"))
    assert all(delta(layer, "qkv", 1).any() and not delta(layer, "o", 1).any() for layer in layers)
    slots.clear(1)
    assert not any(delta(layer, name, 1).any() for layer in layers for name in layer)
    assert slots.num_bytes == 0


def test_the_order_follows_the_site_with_most_adapters_and_slots_are_bounded() -> None:
    slots = AdapterSlots(sites(), 4)
    assert slots.order() == {}
    slots.load(3, adapter(0, 4, "o"))
    slots.load(0, adapter(1, 4, "o", "qkv"))
    assert slots.order() == {3: 0, 0: 1}
    for wrong in (-1, 4):
        with pytest.raises(IndexError, match=str(wrong)):
            slots.load(wrong, adapter(2, 4, "o"))


def test_a_runner_holds_no_more_after_many_changing_batches(tiny_model_dir: Path) -> None:
    from inference.models.lora import site_shapes

    runner = TorchRunner.load(tiny_model_dir, num_blocks=96, num_slots=6, max_model_len=64)
    config = runner._decoder.config

    def whole(rank: int) -> HostAdapter:
        layer = {
            name: SlotWeights(
                tuple(torch.randn(rank, inputs) for _ in outputs),
                tuple(torch.randn(width, rank) for width in outputs),
                tuple(1.0 for _ in outputs),
            )
            for name, (inputs, outputs) in site_shapes(config).items()
        }
        return HostAdapter(tuple(layer for _ in range(config.num_layers)), 0, rank)

    for slot in range(6):
        runner.load_adapter(slot, whole(8 if slot < 4 else 16))
    chooser = random.Random(0)

    def steps(count: int) -> tuple[int, int]:
        for _ in range(count):
            rows = []
            for index in chooser.sample(range(12), chooser.randrange(1, 12)):
                tokens, start = [5] * chooser.choice((1, 1, 1, 40)), chooser.randrange(20)
                blocks = list(range(8 * index, 8 * index + 8))
                rows.append(Row(tokens, start, blocks, chooser.randrange(-1, 6), GREEDY))
            runner.run(rows)
        gc.collect()
        tensors = [found for found in gc.get_objects() if type(found) is torch.Tensor]
        return len(tensors), sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    adapters = runner._slots.num_bytes
    count, held = steps(30)
    later_count, later_held = steps(150)
    assert runner._slots.num_bytes == adapters
    # views of the front come and go with the batch, a few for each site; what they show is counted with them
    sites = 4 * config.num_layers
    assert abs(later_count - count) <= 8 * sites
    assert abs(later_held - held) <= adapters
