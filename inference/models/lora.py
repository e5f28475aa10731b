"""Where adapters act: four sites in each layer, which fuse checkpoint modules as the linears do, embedding and head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from inference.model_config import ModelConfig
from sgmv import EmbeddingSite, Gain, GainRows, Plan, Site, make_site

SITES: dict[str, tuple[str, ...]] = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "o": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}


def site_shapes(config: ModelConfig) -> dict[str, tuple[int, tuple[int, ...]]]:
    """Site → (in_features, output width of each slice)."""
    linears = config.linears()
    shapes = {}
    for site, modules in SITES.items():
        found = [linears[f"model.layers.0.{module}"] for module in modules]
        shapes[site] = (found[0][1], tuple(rows for rows, _ in found))
    return shapes


@dataclass(frozen=True, slots=True)
class AdapterStep:
    """Which rows of a step have which adapter. :param gained: those with DoRA."""

    plan: Plan
    gained: GainRows | None


@dataclass(frozen=True, slots=True)
class AdaptedSite:
    """The adapters of one linear: DoRA's gains, then LoRA's deltas."""

    lora: Site
    gain: Gain

    @classmethod
    def make(
        cls, in_features: int, slices: Sequence[int], bias: Tensor | None, *, device: torch.device, dtype: torch.dtype
    ) -> AdaptedSite:
        lora = make_site(in_features, slices, device=device, dtype=dtype)
        return cls(lora, Gain(sum(slices), bias, device=device, dtype=dtype))

    def apply(self, y: Tensor, x: Tensor, step: AdapterStep, residual: Tensor | None = None) -> None:
        """Change the linear's output ``y`` in place. :param residual: what has been added into ``y`` already."""
        if step.gained is not None:
            self.gain.apply(y, step.gained, residual)
        self.lora.apply(y, x, step.plan)


@dataclass(frozen=True, slots=True)
class AdapterSites:
    """Every place of a decoder at which adapters act. :param layers: per layer, by the names in :data:`SITES`."""

    embedding: EmbeddingSite
    layers: tuple[dict[str, AdaptedSite], ...]
    head: AdaptedSite

    def begin(self, plan: Plan, device: torch.device) -> AdapterStep | None:
        """For all layers of a step; ``None`` where no row has an adapter."""
        # An adapter has gains at every site of every layer, or at none.
        return AdapterStep(plan, GainRows.of(plan, self.layers[0]["qkv"].gain.held, device)) if plan.active else None

    def begin_head(self, slots: Sequence[int], device: torch.device) -> AdapterStep | None:
        """For the head, which sees the rows to sample and no others. :param slots: of each of them."""
        if not self.head.lora.order:
            return None
        plan = Plan(slots)
        return AdapterStep(plan, GainRows.of(plan, self.head.gain.held, device)) if plan.active else None
