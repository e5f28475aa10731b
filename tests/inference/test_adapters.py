"""Adapters on their way into the slots, and what a runner holds while its batches change."""

from __future__ import annotations

import gc
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from inference.adapters.host import HostAdapter, HostLayer
from inference.adapters.slots import AdapterSlots
from inference.core.step import Row
from inference.models.lora import AdaptedSite, AdapterSites, AdapterStep
from inference.protocol import SamplingParams
from inference.runner import TorchRunner
from sgmv import EmbeddingSite, EmbeddingWeights, GainRows, Plan, SlotWeights

GREEDY = SamplingParams(temperature=0.0)


def sites() -> AdapterSites:
    place: dict[str, Any] = {"device": torch.device("cpu"), "dtype": torch.float32}
    return AdapterSites(
        EmbeddingSite(11, 6, **place),
        tuple(
            {"qkv": AdaptedSite.make(6, (4, 2, 2), None, **place), "o": AdaptedSite.make(4, (6,), None, **place)}
            for _ in range(2)
        ),
        AdaptedSite.make(6, (11,), None, **place),
    )


def adapter(seed: int, rank: int, *names: str, gains: bool = False, ends: bool = False) -> HostAdapter:
    generator = torch.Generator().manual_seed(seed)
    shapes = {"qkv": (6, (4, 2, 2)), "o": (4, (6,)), "head": (6, (11,))}

    def site(name: str) -> SlotWeights:
        inputs, outputs = shapes[name]
        return SlotWeights(
            tuple(torch.randn(rank, inputs, generator=generator) for _ in outputs),
            tuple(torch.randn(width, rank, generator=generator) for width in outputs),
            tuple(1.0 for _ in outputs),
        )

    def layer() -> HostLayer:
        excess = {name: torch.randn(sum(shapes[name][1]), generator=generator) for name in names if gains}
        return HostLayer({name: site(name) for name in names}, excess)

    embedding = EmbeddingWeights(torch.randn(11, rank, generator=generator), torch.randn(rank, 6, generator=generator))
    return HostAdapter(
        tuple(layer() for _ in range(2)),
        0,
        rank,
        embedding=embedding if ends else None,
        head=site("head") if ends else None,
        head_gain=torch.randn(11, generator=generator) if ends and gains else None,
    )


def delta(layer: dict[str, AdaptedSite], name: str, slot: int) -> torch.Tensor:
    site, plan = layer[name], Plan([slot])
    y = torch.ones(1, sum(site.lora.slices))
    site.apply(y, torch.ones(1, site.lora.in_features), AdapterStep(plan, GainRows.of(plan, site.gain.held, y.device)))
    return y - 1


def ends(places: AdapterSites, slot: int) -> tuple[bool, bool]:
    """Whether the slot changes the embedding, and the head."""
    hidden, plan = torch.zeros(1, 6), Plan([slot])
    places.embedding.apply(hidden, torch.tensor([3]), plan)
    return bool(hidden.any()), bool(delta({"head": places.head}, "head", slot).any())


def test_a_replaced_slot_keeps_nothing_where_the_new_adapter_is_silent() -> None:
    places = sites()
    layers, slots = places.layers, AdapterSlots(places, 2)
    slots.load(1, adapter(0, 4, "qkv", "o", gains=True, ends=True))
    assert all(delta(layer, name, 1).any() for layer in layers for name in layer)
    assert ends(places, 1) == (True, True)
    slots.load(1, adapter(1, 9, "qkv"))
    assert all(delta(layer, "qkv", 1).any() and not delta(layer, "o", 1).any() for layer in layers)
    assert ends(places, 1) == (False, False)
    slots.load(0, adapter(2, 3, "o", gains=True))
    assert all(delta(layer, "o", 0).any() and not delta(layer, "o", 1).any() for layer in layers)
    assert all(not delta(layer, "qkv", 0).any() for layer in layers), "gains where the adapter has none are ones"
    slots.clear(0)
    slots.clear(1)
    assert not any(delta(layer, name, slot).any() for layer in layers for name in layer for slot in (0, 1))
    assert slots.num_bytes == 0


def test_the_order_follows_the_site_with_most_adapters_and_slots_are_bounded() -> None:
    slots = AdapterSlots(sites(), 4)
    assert slots.order() == {}
    slots.load(3, adapter(0, 4, "o"))
    slots.load(0, adapter(1, 4, "o", "qkv"))
    order = slots.order()
    assert order.keys() == {0, 3}
    assert set(order.values()) == {0, 1}
    for wrong in (-1, 4):
        with pytest.raises(IndexError, match=str(wrong)):
            slots.load(wrong, adapter(2, 4, "o"))


def test_a_runner_holds_no_more_after_many_changing_batches(tiny_model_dir: Path) -> None:
    from inference.models.lora import site_shapes

    runner = TorchRunner.load(tiny_model_dir, num_blocks=96, num_slots=6, max_model_len=64)
    config = runner._decoder.config

    def whole(rank: int) -> HostAdapter:
        layer = HostLayer(
            {
                name: SlotWeights(
                    tuple(torch.randn(rank, inputs) for _ in outputs),
                    tuple(torch.randn(width, rank) for width in outputs),
                    tuple(1.0 for _ in outputs),
                )
                for name, (inputs, outputs) in site_shapes(config).items()
            }
        )
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
