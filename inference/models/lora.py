"""The four sites at which adapters act, and which checkpoint modules each one fuses."""

from __future__ import annotations

from inference.model_config import ModelConfig

SITES: dict[str, tuple[str, ...]] = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "o": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}


def site_shapes(config: ModelConfig) -> dict[str, tuple[int, tuple[int, ...]]]:
    """Site → (in_features, output width of each slice)."""
    query, key_value = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    return {
        "qkv": (config.hidden_size, (query, key_value, key_value)),
        "o": (query, (config.hidden_size,)),
        "gate_up": (config.hidden_size, (config.intermediate_size, config.intermediate_size)),
        "down": (config.intermediate_size, (config.hidden_size,)),
    }
