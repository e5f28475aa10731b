"""One Llama-like decoder on torch: fused linears, attention through a backend, adapters at four sites.

Sequences of a step are laid end to end: ``T`` tokens, no padding, no batch dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from inference.attention.base import AttentionBackend, AttentionStep
from inference.model_config import ModelConfig
from inference.models.adapted import AdaptedLinear
from inference.models.lora import AdapterSites, AdapterStep
from inference.models.pointwise import Norms, Pointwise
from inference.models.rope import Rope
from sgmv import Plan


@dataclass(frozen=True, slots=True)
class Layer:
    """Weights of one layer, or one rank's part of them; the four linears are fused as the adapters' sites are."""

    input_norm: Tensor
    post_norm: Tensor
    qkv: AdaptedLinear
    o: AdaptedLinear
    gate_up: AdaptedLinear
    down: AdaptedLinear
    norms: Norms | None = None


class Decoder:
    """:param embed: ``[T]`` token ids → ``[T, hidden]``, a fresh tensor.

    :param config: of what is here: a rank of several has fewer heads than the model.
    :param head: ``[n, hidden] → [n, vocab]``. :param sites: the adapters, the same ones as in the linears.
    """

    def __init__(
        self,
        *,
        config: ModelConfig,
        embed: Callable[[Tensor], Tensor],
        layers: Sequence[Layer],
        norm: Tensor,
        head: Callable[[Tensor, AdapterStep | None], Tensor],
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
        self,
        tokens: Tensor,
        positions: Tensor,
        plan: Plan,
        attention: AttentionBackend,
        step: AttentionStep,
        *,
        gains: bool | None = None,
    ) -> Tensor:
        """Compute and store KV for all tokens. ``[T] → [T, hidden]``, before the last norm.

        :param gains: see :meth:`~inference.models.lora.AdapterSites.begin`.
        """
        pointwise = self._pointwise
        cos, sin = self._rope.at(positions)
        hidden = self._embed(tokens)
        self.sites.embedding.apply(hidden, tokens, plan)
        adapted = self.sites.begin(plan, hidden.device, gains)
        for index, layer in enumerate(self._layers):
            x = pointwise.rms_norm(hidden, layer.input_norm)
            q, k, v = pointwise.heads(layer.qkv(x, adapted), layer.norms, cos, sin)
            x = attention.attend(index, q, k, v, step)
            hidden = layer.o.add(x, hidden, adapted)
            x = pointwise.rms_norm(hidden, layer.post_norm)
            x = pointwise.gate(layer.gate_up(x, adapted))
            hidden = layer.down.add(x, hidden, adapted)
        return hidden

    def logits(self, hidden: Tensor, rows: Plan | Sequence[int], *, gains: bool | None = None) -> Tensor:
        """``[n, hidden] → [n, vocab]``: call it with the rows to sample and no others.

        :param rows: the slot of each, or a plan of them. :param gains: as for :meth:`forward`.
        """
        x = self._pointwise.rms_norm(hidden, self._norm)
        return self._head(x, self.sites.begin_head(rows, x.device, gains))
