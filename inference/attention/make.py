"""Chooses the attention backend for a model and a device."""

from __future__ import annotations

from typing import Any

import torch

from inference.attention.base import AttentionBackend
from inference.attention.panel_backend import PanelAttention
from inference.attention.torch_backend import TorchAttention
from inference.model_config import ModelConfig


def make_attention(
    config: ModelConfig, *, num_blocks: int, block_size: int, device: torch.device, dtype: torch.dtype
) -> AttentionBackend:
    """Compiled loops where they are made for the machine and the sizes, torch anywhere else."""
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
    return TorchAttention(**sizes, device=device, dtype=dtype)
