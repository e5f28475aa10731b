"""One Llama-like decoder on torch: norms, fused linears, rotation, attention through a backend, adapters at four sites.

Sequences of a step are laid end to end: ``T`` tokens, no padding, no batch dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from inference.attention.base import AttentionBackend, AttentionStep
from inference.model_config import ModelConfig
from inference.models.linear import Linear
from inference.models.rope import Rope
from sgmv import Plan, Site


@dataclass(frozen=True, slots=True)
class Layer:
    """Weights of one layer; the four linears are fused as the adapters' sites are."""

    input_norm: Tensor
    post_norm: Tensor
    qkv: Linear
    o: Linear
    gate_up: Linear
    down: Linear
    q_norm: Tensor | None = None
    k_norm: Tensor | None = None


class Decoder:
    """:param sites: per layer, site name → the adapters there.

    :param attention: owns the KV pool; one call per layer.
    """

    def __init__(
        self,
        *,
        config: ModelConfig,
        embedding: Tensor,
        layers: Sequence[Layer],
        norm: Tensor,
        head: Linear,
        rope: Rope,
        sites: Sequence[dict[str, Site]],
    ) -> None:
        self.config = config
        self._embedding = embedding
        self._layers = tuple(layers)
        self._norm = norm
        self._head = head
        self._rope = rope
        self.sites = tuple(sites)
        self._query = config.num_heads * config.head_dim
        self._rotated = self._query + config.num_kv_heads * config.head_dim

    def forward(
        self, tokens: Tensor, positions: Tensor, plan: Plan, attention: AttentionBackend, step: AttentionStep
    ) -> Tensor:
        """Compute and store KV for all tokens. ``[T] → [T, hidden]``, before the last norm."""
        eps = self.config.rms_eps
        cos, sin = self._rope.at(positions)
        hidden = self._embedding.index_select(0, tokens)
        for index, (layer, sites) in enumerate(zip(self._layers, self.sites, strict=True)):
            x = _rms_norm(hidden, layer.input_norm, eps)
            qkv = _adapted(layer.qkv, sites["qkv"], x, plan)
            q, k, v = self._heads(qkv, layer, cos, sin)
            x = attention.attend(index, q, k, v, step)
            hidden = _adapted_add(layer.o, sites["o"], x, hidden, plan)
            x = _rms_norm(hidden, layer.post_norm, eps)
            gate, up = _adapted(layer.gate_up, sites["gate_up"], x, plan).chunk(2, dim=1)
            x = F.silu(gate).mul_(up)
            hidden = _adapted_add(layer.down, sites["down"], x, hidden, plan)
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """``[n, hidden] → [n, vocab]``: call it with the rows to sample and no others."""
        return self._head(_rms_norm(hidden, self._norm, self.config.rms_eps))

    def _heads(self, qkv: Tensor, layer: Layer, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        config = self.config
        qk = qkv[:, : self._rotated].view(len(qkv), -1, config.head_dim)
        v = qkv[:, self._rotated :].view(len(qkv), -1, config.head_dim)
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = qk[:, : config.num_heads], qk[:, config.num_heads :]
            eps = config.rms_eps
            qk = torch.cat([_rms_norm(q, layer.q_norm, eps), _rms_norm(k, layer.k_norm, eps)], dim=1)
        qk = self._rope.rotate(qk, cos, sin)
        return qk[:, : config.num_heads], qk[:, config.num_heads :], v


def _adapted(linear: Linear, site: Site, x: Tensor, plan: Plan) -> Tensor:
    y = linear(x)
    if plan.active:
        site.apply(y, x, plan)
    return y


def _adapted_add(linear: Linear, site: Site, x: Tensor, residual: Tensor, plan: Plan) -> Tensor:
    y = linear.add(x, residual)
    if plan.active:
        site.apply(y, x, plan)
    return y


def _rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],), weight, eps)
