"""A model of random weights and random adapters for it, on disk as they would be downloaded."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from inference.model_config import ModelConfig

LLAMA_3_8B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 128_256,
    "hidden_size": 4096,
    "intermediate_size": 14_336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500_000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
TINY: dict[str, Any] = LLAMA_3_8B | {
    "vocab_size": 512,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "max_position_embeddings": 512,
}
"""On a GPU it runs the same kernels: its heads' size is one that they are made for."""
SCALING = 2.0
_DELTA = 0.1
"""Of B, so that an adapter changes what a layer says by a fifth: enough to tell one from another by its tokens."""


@dataclass(frozen=True, slots=True)
class RandomModel:
    """:param folder: ``base`` and ``a0``, ``a1``, … lie in it. :param rank: of every adapter, on all linears."""

    folder: Path
    config: ModelConfig
    rank: int
    dtype: torch.dtype

    @property
    def base(self) -> Path:
        return self.folder / "base"

    def adapter(self, index: int) -> Path:
        return self.folder / f"a{index}"

    @property
    def adapter_bytes(self) -> int:
        return self.rank * sum(map(sum, self.config.linears().values())) * self.dtype.itemsize

    @property
    def step_bytes(self) -> int:
        """Of the weights, those that a decode step reads: all but the embedding, of which it takes a row a token."""
        shapes = self.config.tensor_shapes()
        table = 0 if self.config.tied else math.prod(shapes["model.embed_tokens.weight"])
        return (sum(map(math.prod, shapes.values())) - table) * self.dtype.itemsize

    @property
    def token_bytes(self) -> int:
        """Of one position's keys and values in all layers."""
        config = self.config
        return 2 * config.num_layers * config.num_kv_heads * config.head_dim * self.dtype.itemsize


def write_model(
    folder: Path, sizes: dict[str, Any], *, adapters: int, rank: int, dtype: torch.dtype, device: torch.device
) -> RandomModel:
    """Random numbers are drawn on ``device``. Raises ``SystemExit`` where the disk has no room."""
    model = RandomModel(folder, ModelConfig.from_json(sizes), rank, dtype)
    table = math.prod(model.config.tensor_shapes()["model.embed_tokens.weight"]) * dtype.itemsize
    needed = model.step_bytes + table + adapters * model.adapter_bytes
    free = shutil.disk_usage(folder).free
    if free < 1.05 * needed:
        raise SystemExit(
            f"--folder: {needed / 1e9:.1f} GB of random weights and adapters do not fit into {folder}, which has "
            f"{free / 1e9:.1f} GB free"
        )
    model.base.mkdir()
    (model.base / "config.json").write_text(json.dumps(sizes | {"dtype": str(dtype).removeprefix("torch.")}))
    generator = torch.Generator(device=device).manual_seed(0)
    _write_weights(model, generator)
    for index in range(adapters):
        _write_adapter(model, index, generator)
    return model


def _random(shape: tuple[int, ...], deviation: float, generator: torch.Generator, dtype: torch.dtype) -> Tensor:
    return torch.randn(shape, generator=generator, device=generator.device, dtype=dtype).mul_(deviation).cpu()


def _write_weights(model: RandomModel, generator: torch.Generator) -> None:
    """Numbers of about 1 everywhere: a linear's are scaled by 1/√in, a norm's are 1. A file for each layer."""
    places: dict[str, str] = {}
    for number, names in enumerate(_by_layer(model.config)):
        tensors = {}
        for name, shape in names.items():
            deviation = 1.0 if "embed" in name else 1 / math.sqrt(shape[-1])
            norm = len(shape) == 1
            tensors[name] = (
                torch.ones(shape, dtype=model.dtype) if norm else _random(shape, deviation, generator, model.dtype)
            )
        file = f"model-{number:05}.safetensors"
        save_file(tensors, model.base / file, metadata={"format": "pt"})
        places |= dict.fromkeys(tensors, file)
    index = {"metadata": {}, "weight_map": places}
    (model.base / "model.safetensors.index.json").write_text(json.dumps(index))


def _by_layer(config: ModelConfig) -> Iterator[dict[str, tuple[int, ...]]]:
    parts: dict[str, dict[str, tuple[int, ...]]] = {}
    for name, shape in config.tensor_shapes().items():
        key = ".".join(name.split(".")[:3]) if ".layers." in name else name
        parts.setdefault(key, {})[name] = shape
    yield from parts.values()


def _write_adapter(model: RandomModel, index: int, generator: torch.Generator) -> None:
    out = model.adapter(index)
    out.mkdir()
    tensors = {}
    for module, (rows, columns) in model.config.linears().items():
        name = f"base_model.model.{module}"
        tensors[f"{name}.lora_A.weight"] = _random(
            (model.rank, columns), 1 / math.sqrt(columns), generator, model.dtype
        )
        tensors[f"{name}.lora_B.weight"] = _random(
            (rows, model.rank), _DELTA / math.sqrt(model.rank), generator, model.dtype
        )
    save_file(tensors, out / "adapter_model.safetensors", metadata={"format": "pt"})
    targets = sorted({module.rpartition(".")[2] for module in model.config.linears()})
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": model.rank, "lora_alpha": SCALING * model.rank}
    (out / "adapter_config.json").write_text(json.dumps(config | {"target_modules": targets, "bias": "none"}))
