"""One Llama-like decoder on torch: fused linears, attention through a backend, adapters at four sites.

Sequences of a step are laid end to end: ``T`` tokens, no padding, no batch dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from inference.attention.base import AttentionBackend, AttentionStep
from inference.model_config import ModelConfig
from inference.models.linear import Linear
from inference.models.lora import AdaptedSite, AdapterSites, AdapterStep
from inference.models.pointwise import Norms, Pointwise
from inference.models.rope import Rope
from sgmv import Plan


@dataclass(frozen=True, slots=True)
class Layer:
    """Weights of one layer; the four linears are fused as the adapters' sites are."""

    input_norm: Tensor
    post_norm: Tensor
    qkv: Linear
    o: Linear
    gate_up: Linear
    down: Linear
    norms: Norms | None = None


class Decoder:
    """:param embed: ``[T]`` token ids → ``[T, hidden]``, a fresh tensor.

    :param sites: the adapters.

    :param attention: owns the KV pool; one call per layer.
    """

    def __init__(
        self,
        *,
        config: ModelConfig,
        embed: Callable[[Tensor], Tensor],
        layers: Sequence[Layer],
        norm: Tensor,
        head: Linear,
        rope: Rope,
        pointwise: Pointwise,
        sites: AdapterSites,
    ) -> None:
        self.config = config
        self._embed = embed
        self._layers = tuple(layers)
        self._norm = norm
        self._head = head
        self._rope = rope
        self._pointwise = pointwise
        self.sites = sites

    def forward(
        self, tokens: Tensor, positions: Tensor, plan: Plan, attention: AttentionBackend, step: AttentionStep
    ) -> Tensor:
        """Compute and store KV for all tokens. ``[T] → [T, hidden]``, before the last norm."""
        pointwise = self._pointwise
        cos, sin = self._rope.at(positions)
        hidden = self._embed(tokens)
        self.sites.embedding.apply(hidden, tokens, plan)
        adapted = self.sites.begin(plan, hidden.device)
        for index, (layer, sites) in enumerate(zip(self._layers, self.sites.layers, strict=True)):
            x = pointwise.rms_norm(hidden, layer.input_norm)
            qkv = _adapted(layer.qkv, sites["qkv"], x, adapted)
            q, k, v = pointwise.heads(qkv, layer.norms, cos, sin)
            x = attention.attend(index, q, k, v, step)
            hidden = _adapted_add(layer.o, sites["o"], x, hidden, adapted)
            x = pointwise.rms_norm(hidden, layer.post_norm)
            x = pointwise.gate(_adapted(layer.gate_up, sites["gate_up"], x, adapted))
            hidden = _adapted_add(layer.down, sites["down"], x, hidden, adapted)
        return hidden

    def logits(self, hidden: Tensor, slots: Sequence[int]) -> Tensor:
        """``[n, hidden] → [n, vocab]``: call it with the rows to sample and no others. :param slots: of each row."""
        x = self._pointwise.rms_norm(hidden, self._norm)
        return _adapted(self._head, self.sites.head, x, self.sites.begin_head(slots, x.device))


def _adapted(linear: Linear, site: AdaptedSite, x: Tensor, step: AdapterStep | None) -> Tensor:
    y = linear(x)
    if step is not None:
        site.apply(y, x, step)
    return y


def _adapted_add(linear: Linear, site: AdaptedSite, x: Tensor, residual: Tensor, step: AdapterStep | None) -> Tensor:
    y = linear.add(x, residual)
    if step is not None:
        site.apply(y, x, step, residual)
    return y
