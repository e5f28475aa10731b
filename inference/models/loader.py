"""Builds a :class:`~inference.models.decoder.Decoder` from a model store directory."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from inference.model_config import EMBEDDING, HEAD, ModelConfig
from inference.models.checkpoint import Checkpoint
from inference.models.decoder import Decoder, Layer
from inference.models.linear import Linear, make_linear
from inference.models.lora import SITES, AdaptedSite, AdapterSites, site_shapes
from inference.models.panels import PanelLinear
from inference.models.pointwise import make_pointwise
from inference.models.rope import Rope
from sgmv import EmbeddingSite


def load_decoder(
    directory: Path, *, positions: int, device: torch.device, dtype: torch.dtype, held: str = "full"
) -> Decoder:
    """Read the weights and lay them out for ``device``.

    :param positions: how many positions the rotation tables cover.
    :param held: how the linears hold their weights, see :func:`~inference.models.linear.make_linear`.
    :raises ConfigError: a file or tensor is missing, or the architecture is not supported.
    """
    config = ModelConfig.load(directory)
    weights = _Weights(Checkpoint(directory), config, device, dtype)
    table = weights.tensor(f"{EMBEDDING}.weight")
    head = make_linear(table if config.tied else weights.tensor(f"{HEAD}.weight"), held=held)
    layers = [_layer(weights, f"model.layers.{index}.", held) for index in range(config.num_layers)]
    rope = Rope(config, positions, device=device, dtype=dtype)
    return Decoder(
        config=config,
        embed=_embedding(table, head, tied=config.tied),
        layers=[layer for layer, _ in layers],
        norm=weights.kept("model.norm.weight"),
        head=head,
        rope=rope,
        pointwise=make_pointwise(config, rope, device=device, dtype=dtype),
        sites=AdapterSites(
            embedding=EmbeddingSite(config.vocab_size, config.hidden_size, device=device, dtype=dtype),
            layers=tuple(sites for _, sites in layers),
            head=AdaptedSite.make(config.hidden_size, (config.vocab_size,), None, device=device, dtype=dtype),
        ),
    )


def _embedding(table: Tensor, head: Linear, *, tied: bool) -> Callable[[Tensor], Tensor]:
    """A tied head whose layout still gives single rows is the table too: a ninth of SmolLM2's memory less."""
    if tied and isinstance(head, PanelLinear):
        return head.rows
    return partial(torch.index_select, table.clone(), 0)


class _Weights:
    """Tensors of a checkpoint as the configuration has them, on the device and in its type."""

    def __init__(self, checkpoint: Checkpoint, config: ModelConfig, device: torch.device, dtype: torch.dtype) -> None:
        self._checkpoint, self.config, self.device, self.dtype = checkpoint, config, device, dtype
        self._shapes = config.tensor_shapes()

    def __contains__(self, name: str) -> bool:
        return name in self._shapes

    def tensor(self, name: str) -> Tensor:
        """May show the checkpoint's file itself, which stays in memory as long as the tensor does."""
        return self._checkpoint.tensor(name, self._shapes[name]).to(device=self.device, dtype=self.dtype)

    def kept(self, name: str) -> Tensor:
        """A copy of its own, for what is not laid out anew."""
        return self.tensor(name).clone()


def _layer(weights: _Weights, prefix: str, held: str) -> tuple[Layer, dict[str, AdaptedSite]]:
    linears: dict[str, Linear] = {}
    sites: dict[str, AdaptedSite] = {}
    for name, (in_features, slices) in site_shapes(weights.config).items():
        modules = [prefix + module for module in SITES[name]]
        weight = torch.cat([weights.tensor(f"{module}.weight") for module in modules])
        biased = f"{modules[0]}.bias" in weights
        bias = torch.cat([weights.tensor(f"{module}.bias") for module in modules]) if biased else None
        linears[name] = make_linear(weight, bias, held=held)
        sites[name] = AdaptedSite.make(in_features, slices, bias, device=weights.device, dtype=weights.dtype)
    attention = f"{prefix}self_attn."
    normed = f"{attention}q_norm.weight" in weights
    layer = Layer(
        input_norm=weights.kept(f"{prefix}input_layernorm.weight"),
        post_norm=weights.kept(f"{prefix}post_attention_layernorm.weight"),
        qkv=linears["qkv"],
        o=linears["o"],
        gate_up=linears["gate_up"],
        down=linears["down"],
        norms=(weights.kept(f"{attention}q_norm.weight"), weights.kept(f"{attention}k_norm.weight"))
        if normed
        else None,
    )
    return layer, sites
