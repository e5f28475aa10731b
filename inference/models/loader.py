"""Builds a :class:`~inference.models.decoder.Decoder` from a model store directory."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from inference.model_config import EMBEDDING, HEAD, ModelConfig
from inference.models.adapted import Adapted, AdaptedLinear
from inference.models.checkpoint import Checkpoint
from inference.models.decoder import Decoder, Layer
from inference.models.linear import Linear, make_linear
from inference.models.lora import SITES, SUMMED, AdaptedSite, AdapterSites, site_shapes
from inference.models.panels import PanelLinear
from inference.models.pointwise import make_pointwise
from inference.models.rope import Rope
from inference.parallel.gathered import Gathered
from inference.parallel.peers import Peers
from inference.parallel.shard import WHOLE, Shard
from inference.parallel.summed import Summed
from sgmv import Storage, make_embedding


def load_decoder(
    directory: Path,
    *,
    positions: int,
    device: torch.device,
    dtype: torch.dtype,
    held: str = "full",
    peers: Peers | None = None,
    storage: Storage | None = None,
) -> Decoder:
    """Read the weights and lay them out for ``device``.

    :param positions: how many positions the rotation tables cover.
    :param held: how the linears hold their weights, see :func:`~inference.models.linear.make_linear`.
    :param peers: read this rank's part, and compute the rest with them. Without it, everything.
    :param storage: how every place at which adapters act holds them.
    :raises ConfigError: a file or tensor is missing, the architecture is not supported, or it cannot be divided so.
    """
    weights = _Weights(Checkpoint(directory), ModelConfig.load(directory), device, dtype, peers, storage=storage)
    config = weights.config
    table = weights.tensor(f"{EMBEDDING}.weight")
    projection = weights.spread(f"{EMBEDDING if config.tied else HEAD}.weight")
    site = AdaptedSite.make(config.hidden_size, (len(projection),), None, device=device, dtype=dtype, storage=storage)
    head = Adapted(make_linear(projection, held=_held_head(held)), site)
    layers = [_layer(weights, f"model.layers.{index}.", held) for index in range(config.num_layers)]
    rope = Rope(config, positions, device=device, dtype=dtype)
    return Decoder(
        config=config,
        embed=_embedding(table, head.linear if config.tied and peers is None else None),
        layers=[layer for layer, _ in layers],
        norm=weights.kept("model.norm.weight"),
        head=head if peers is None else Gathered(head, peers, config.vocab_size),
        rope=rope,
        pointwise=make_pointwise(config, rope, device=device, dtype=dtype),
        sites=AdapterSites(
            embedding=make_embedding(
                config.vocab_size, config.hidden_size, device=device, dtype=dtype, storage=storage
            ),
            layers=tuple(sites for _, sites in layers),
            head=site,
        ),
    )


def _held_head(held: str) -> str:
    """A head stays as it is where the layers are fp8: rounding it costs more than rounding all of them.

    SmolLM2-135M's perplexity: 30.82; 31.16 with the layers in fp8; 31.64 with the head, which is tied, as well (5,250
    tokens). Of Llama-3-8B's weights it is a fourteenth.
    """
    return "full" if held == "fp8" else held


def _embedding(table: Tensor, tied: Linear | None) -> Callable[[Tensor], Tensor]:
    """A tied head whose layout still gives single rows is the table too: a ninth of SmolLM2's memory less."""
    if isinstance(tied, PanelLinear):
        return tied.rows
    return partial(torch.index_select, table.clone(), 0)


class _Weights:
    """Tensors of a checkpoint as this rank has them, on the device and in its type.

    :ivar config: the rank's. :ivar leads: whether it is rank 0, or alone.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        whole: ModelConfig,
        device: torch.device,
        dtype: torch.dtype,
        peers: Peers | None,
        *,
        storage: Storage | None,
    ) -> None:
        self._checkpoint, self.device, self.dtype, self.peers = checkpoint, device, dtype, peers
        self.storage = storage
        self._shard: Shard = WHOLE if peers is None else peers.shard
        self.config = self._shard.config(whole)
        self.leads = self._shard.rank == 0
        self._whole_shapes, self._shapes = whole.tensor_shapes(), self.config.tensor_shapes()

    def __contains__(self, name: str) -> bool:
        return name in self._shapes

    def tensor(self, name: str) -> Tensor:
        """May show the checkpoint's file itself, which stays in memory as long as the tensor does."""
        whole = self._checkpoint.tensor(name, self._whole_shapes[name])
        return self._shard.cut(whole, self._shapes[name]).to(device=self.device, dtype=self.dtype)

    def spread(self, name: str) -> Tensor:
        """The same for a tensor that has a row for each token of the vocabulary."""
        whole = self._checkpoint.tensor(name, self._whole_shapes[name])
        return self._shard.spread(whole).to(device=self.device, dtype=self.dtype)

    def kept(self, name: str) -> Tensor:
        """A copy of its own, for what is not laid out anew."""
        return self.tensor(name).clone()


def _layer(weights: _Weights, prefix: str, held: str) -> tuple[Layer, dict[str, AdaptedSite]]:
    linears: dict[str, AdaptedLinear] = {}
    sites: dict[str, AdaptedSite] = {}
    for name, (in_features, slices) in site_shapes(weights.config).items():
        modules = [prefix + module for module in SITES[name]]
        weight = torch.cat([weights.tensor(f"{module}.weight") for module in modules])
        biased = f"{modules[0]}.bias" in weights and (weights.leads or name not in SUMMED)
        bias = torch.cat([weights.tensor(f"{module}.bias") for module in modules]) if biased else None
        site = AdaptedSite.make(
            in_features, slices, bias, device=weights.device, dtype=weights.dtype, storage=weights.storage
        )
        own = Adapted(make_linear(weight, bias, held=held), site)
        sites[name] = site
        linears[name] = own if weights.peers is None or name not in SUMMED else Summed(own, weights.peers)
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
