"""Chooses the attention backend for a model and a device."""

from __future__ import annotations

from typing import Any

import torch

from inference.attention.base import AttentionBackend
from inference.attention.panel_backend import PanelAttention
from inference.attention.torch_backend import TorchAttention
from inference.model_config import ModelConfig


def block_bytes(config: ModelConfig, block_size: int, dtype: torch.dtype) -> int:
    """What a block of the KV pool takes: keys and values, in all layers."""
    return 2 * config.num_layers * config.num_kv_heads * config.head_dim * block_size * dtype.itemsize


def make_attention(
    config: ModelConfig, *, num_blocks: int, block_size: int, device: torch.device, dtype: torch.dtype
) -> AttentionBackend:
    """Compiled loops or GPU kernels where they are made for the machine and the sizes, torch anywhere else."""
    sizes: dict[str, Any] = {
        "num_layers": config.num_layers,
        "num_heads": config.num_heads,
        "num_kv_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "num_blocks": num_blocks,
        "block_size": block_size,
        "windows": config.windows,
    }
    if PanelAttention.supports(head_dim=config.head_dim, block_size=block_size, device=device, dtype=dtype):
        return PanelAttention(**sizes)
    if device.type == "cuda":  # imported here: a CPU needs no Triton
        from inference.attention.triton_backend import TritonAttention

        if TritonAttention.supports(head_dim=config.head_dim, block_size=block_size, dtype=dtype):
            return TritonAttention(**sizes, device=device, dtype=dtype)
    return TorchAttention(**sizes, device=device, dtype=dtype)
