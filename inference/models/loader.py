"""Builds a :class:`~inference.models.decoder.Decoder` from a model store directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from inference.errors import ConfigError
from inference.model_config import ModelConfig
from inference.models.decoder import Decoder, Layer
from inference.models.linear import Linear, make_linear
from inference.models.lora import SITES, site_shapes
from inference.models.rope import Rope
from sgmv import Site, make_site


class _Checkpoint:
    """Tensors by name over one safetensors file or several, read one at a time."""

    def __init__(self, directory: Path, device: torch.device, dtype: torch.dtype) -> None:
        self._device, self._dtype = device, dtype
        paths = sorted(directory.glob("model*.safetensors"))
        files: list[Any] = [safe_open(path, framework="pt") for path in paths]
        self._where = {name: file for file in files for name in file.keys()}  # noqa: SIM118 not a dict

    def tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        if name not in self._where:
            raise ConfigError(f"tensor {name}: missing from the weights")
        tensor: Tensor = self._where[name].get_tensor(name)
        if tuple(tensor.shape) != shape:
            raise ConfigError(f"tensor {name}: shape {tuple(tensor.shape)}, config.json implies {shape}")
        return tensor.to(device=self._device, dtype=self._dtype)


def load_decoder(directory: Path, *, positions: int, device: torch.device, dtype: torch.dtype) -> Decoder:
    """Read the weights and lay them out for ``device``.

    :param positions: how many positions the rotation tables cover.
    :raises ConfigError: a file or tensor is missing, or the architecture is not supported.
    """
    try:
        config = ModelConfig.from_json(json.loads((directory / "config.json").read_text()))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{directory / 'config.json'}: {error}") from error
    checkpoint = _Checkpoint(directory, device, dtype)
    shapes = config.tensor_shapes()
    embedding = checkpoint.tensor("model.embed_tokens.weight", shapes["model.embed_tokens.weight"])
    head = embedding if config.tied else checkpoint.tensor("lm_head.weight", shapes["lm_head.weight"])
    return Decoder(
        config=config,
        embedding=embedding,
        layers=[_layer(checkpoint, shapes, index) for index in range(config.num_layers)],
        norm=checkpoint.tensor("model.norm.weight", shapes["model.norm.weight"]),
        head=make_linear(head),
        rope=Rope(config, positions, device=device, dtype=dtype),
        sites=[_sites(config, device, dtype) for _ in range(config.num_layers)],
    )


def _layer(checkpoint: _Checkpoint, shapes: dict[str, tuple[int, ...]], index: int) -> Layer:
    prefix = f"model.layers.{index}."

    def tensor(name: str) -> Tensor:
        return checkpoint.tensor(prefix + name, shapes[prefix + name])

    def fused(site: str) -> Linear:
        modules = SITES[site]
        weight = torch.cat([tensor(f"{module}.weight") for module in modules])
        biased = f"{prefix}{modules[0]}.bias" in shapes
        return make_linear(weight, torch.cat([tensor(f"{module}.bias") for module in modules]) if biased else None)

    normed = f"{prefix}self_attn.q_norm.weight" in shapes
    return Layer(
        input_norm=tensor("input_layernorm.weight"),
        post_norm=tensor("post_attention_layernorm.weight"),
        qkv=fused("qkv"),
        o=fused("o"),
        gate_up=fused("gate_up"),
        down=fused("down"),
        q_norm=tensor("self_attn.q_norm.weight") if normed else None,
        k_norm=tensor("self_attn.k_norm.weight") if normed else None,
    )


def _sites(config: ModelConfig, device: torch.device, dtype: torch.dtype) -> dict[str, Site]:
    shapes = site_shapes(config).items()
    return {name: make_site(inputs, slices, device=device, dtype=dtype) for name, (inputs, slices) in shapes}
