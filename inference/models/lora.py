"""Where adapters act: four sites in each layer, which fuse checkpoint modules as the linears do, embedding and head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from inference.model_config import ModelConfig
from sgmv import EmbeddingSite, Gain, GainRows, Plan, Site, Storage, make_gain, make_site

SITES: dict[str, tuple[str, ...]] = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "o": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}

SUMMED = frozenset({"o", "down"})
"""Sites whose input several ranks share out: each computes a part of every output, and the parts are summed."""


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
        cls,
        in_features: int,
        slices: Sequence[int],
        bias: Tensor | None,
        *,
        device: torch.device,
        dtype: torch.dtype,
        storage: Storage | None = None,
    ) -> AdaptedSite:
        lora = make_site(in_features, slices, device=device, dtype=dtype, storage=storage)
        return cls(lora, make_gain(sum(slices), bias, device=device, dtype=dtype, storage=storage))

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

    def gained(self, plan: Plan) -> bool:
        """Whether a row of the plan has an adapter with DoRA, at the head or before it."""
        # An adapter has gains at every site of every layer, or at none; the head's are its own.
        held, of_head = self.layers[0]["qkv"].gain.held, self.head.gain.held
        return any(slot in held or slot in of_head for slot in plan.slots)

    def begin(self, plan: Plan, device: torch.device, gains: bool | None = None) -> AdapterStep | None:
        """For all layers of a step; ``None`` where no row has an adapter, unless the plan is fixed.

        :param gains: whether DoRA's kernels are launched; ``None``: where a row has gains. A step is captured as a
            graph once with and once without: :meth:`gained` says which of the two a batch needs.
        """
        return _begun(plan, self.layers[0]["qkv"].gain, device, gains)

    def begin_head(
        self, rows: Plan | Sequence[int], device: torch.device, gains: bool | None = None
    ) -> AdapterStep | None:
        """For the head, which sees the rows to sample and no others. :param rows: their slots, or a plan of them."""
        if isinstance(rows, Plan):
            return _begun(rows, self.head.gain, device, gains)
        return _begun(Plan(rows), self.head.gain, device, gains) if self.head.lora.order else None


def _begun(plan: Plan, gain: Gain, device: torch.device, gains: bool | None) -> AdapterStep | None:
    if not plan.active and not plan.fixed:
        return None
    if gains is None:
        return AdapterStep(plan, GainRows.of(plan, gain.held, device))
    return AdapterStep(plan, GainRows(plan, gain.held, device) if gains else None)
