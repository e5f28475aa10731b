"""The part of an adapter that one rank of several applies: it is cut where the linears of its sites are."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from inference.adapters.host import HostAdapter, HostLayer
from inference.model_config import ModelConfig
from inference.models.lora import site_shapes
from inference.parallel.shard import Shard
from sgmv import SlotWeights


def part_of(adapter: HostAdapter, config: ModelConfig, shard: Shard) -> HostAdapter:
    """What is cut is copied. Outputs (qkv, gate_up): A whole, B and gains cut; inputs (o, down): A cut, the rest whole.

    The embedding is every rank's, the head is spread over them, as the base model's own are.

    :param config: of the whole model.
    """
    if shard.size == 1:
        return adapter
    whole, own = site_shapes(config), site_shapes(shard.config(config))
    layers = tuple(
        HostLayer(
            {name: _site(weights, *own[name], shard) for name, weights in layer.sites.items()},
            {name: _gain(gain, whole[name][1], own[name][1], shard) for name, gain in layer.gains.items()},
        )
        for layer in adapter.layers
    )
    head = adapter.head
    return replace(
        adapter,
        layers=layers,
        head=None if head is None else replace(head, b=tuple(None if b is None else shard.spread(b) for b in head.b)),
        head_gain=None if adapter.head_gain is None else shard.spread(adapter.head_gain),
    )


def _site(weights: SlotWeights, in_features: int, slices: tuple[int, ...], shard: Shard) -> SlotWeights:
    def cut(tensor: Tensor | None, shape: tuple[int, int]) -> Tensor | None:
        if tensor is None:
            return None
        part = shard.cut(tensor, shape)
        return part if part is tensor else part.clone(memory_format=torch.contiguous_format)

    return SlotWeights(
        a=tuple(cut(a, (rank, in_features)) for a, rank in zip(weights.a, weights.ranks, strict=True)),
        b=tuple(cut(b, (out, rank)) for b, out, rank in zip(weights.b, slices, weights.ranks, strict=True)),
        scaling=weights.scaling,
    )


def _gain(gain: Tensor, whole: tuple[int, ...], own: tuple[int, ...], shard: Shard) -> Tensor:
    """Of a site's slices end to end, each cut by itself."""
    return torch.cat(
        [shard.cut(part, (width,)) for part, width in zip(torch.split_with_sizes(gain, whole), own, strict=True)]
    )
