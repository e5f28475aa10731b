"""What a decoder's ``config.json`` says, in the worker's own terms. Torch-free: registration reads it too."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from inference.errors import UnsupportedModel

ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """Llama 3's frequency scaling: wavelengths beyond the trained context are stretched by ``factor``."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context: int


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Shape of one Llama-like decoder. The boolean axes are what tells the supported families apart.

    :param attention_bias: q, k and v carry a bias (Qwen2).
    :param output_bias: o carries one as well (Llama with ``attention_bias``).
    :param mlp_bias: gate, up and down carry a bias.
    :param qk_norm: q and k are RMS-normalised per head before the rotation (Qwen3).
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position: int
    rms_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None
    tied: bool
    attention_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> ModelConfig:
        """Raises :class:`~inference.errors.UnsupportedModel` that names the key this worker cannot honour."""
        architecture = (data.get("architectures") or [None])[0]
        if architecture not in ARCHITECTURES:
            raise UnsupportedModel(f"config.json: architecture {architecture!r}; supported: {', '.join(ARCHITECTURES)}")
        if data.get("quantization_config"):
            method = data["quantization_config"].get("quant_method")
            raise UnsupportedModel(f"config.json: quantization_config (quant_method {method!r}) is not supported")
        if data.get("hidden_act", "silu") != "silu":
            raise UnsupportedModel(f"config.json: hidden_act {data['hidden_act']!r}; only silu is supported")
        _refuse_sliding_window(data)
        try:
            return cls._read(architecture, data)
        except KeyError as missing:
            raise UnsupportedModel(f"config.json: {missing.args[0]} is missing") from missing

    @classmethod
    def _read(cls, architecture: str, data: dict[str, Any]) -> ModelConfig:
        heads = int(data["num_attention_heads"])
        # transformers 5 moved rope_theta and rope_scaling into one dictionary.
        rope = data.get("rope_parameters") or {}
        scaling = data.get("rope_scaling") or (rope if rope.get("rope_type", "default") != "default" else None)
        bias = bool(data.get("attention_bias", False))
        return cls(
            architecture=architecture,
            vocab_size=int(data["vocab_size"]),
            hidden_size=int(data["hidden_size"]),
            intermediate_size=int(data["intermediate_size"]),
            num_layers=int(data["num_hidden_layers"]),
            num_heads=heads,
            num_kv_heads=int(data.get("num_key_value_heads") or heads),
            head_dim=int(data.get("head_dim") or data["hidden_size"] // heads),
            max_position=int(data["max_position_embeddings"]),
            rms_eps=float(data["rms_norm_eps"]),
            rope_theta=float(data.get("rope_theta") or rope.get("rope_theta") or 10_000.0),
            rope_scaling=_scaling(scaling, int(data["max_position_embeddings"])),
            tied=bool(data.get("tie_word_embeddings", False)),
            attention_bias=bias or architecture == "Qwen2ForCausalLM",
            output_bias=bias,
            mlp_bias=bool(data.get("mlp_bias", False)),
            qk_norm=architecture == "Qwen3ForCausalLM",
        )

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Every tensor the weights must hold, by its name in a Hugging Face checkpoint."""
        shapes: dict[str, tuple[int, ...]] = {
            "model.embed_tokens.weight": (self.vocab_size, self.hidden_size),
            "model.norm.weight": (self.hidden_size,),
        }
        if not self.tied:
            shapes["lm_head.weight"] = (self.vocab_size, self.hidden_size)
        for layer in range(self.num_layers):
            for name, shape in self._layer_shapes().items():
                shapes[f"model.layers.{layer}.{name}"] = shape
        return shapes

    def _layer_shapes(self) -> dict[str, tuple[int, ...]]:
        hidden, inner, head = self.hidden_size, self.intermediate_size, self.head_dim
        linears = {
            "self_attn.q_proj": (self.num_heads * head, hidden, self.attention_bias),
            "self_attn.k_proj": (self.num_kv_heads * head, hidden, self.attention_bias),
            "self_attn.v_proj": (self.num_kv_heads * head, hidden, self.attention_bias),
            "self_attn.o_proj": (hidden, self.num_heads * head, self.output_bias),
            "mlp.gate_proj": (inner, hidden, self.mlp_bias),
            "mlp.up_proj": (inner, hidden, self.mlp_bias),
            "mlp.down_proj": (hidden, inner, self.mlp_bias),
        }
        shapes: dict[str, tuple[int, ...]] = {
            "input_layernorm.weight": (hidden,),
            "post_attention_layernorm.weight": (hidden,),
        }
        for name, (rows, columns, bias) in linears.items():
            shapes[f"{name}.weight"] = (rows, columns)
            if bias:
                shapes[f"{name}.bias"] = (rows,)
        if self.qk_norm:
            shapes["self_attn.q_norm.weight"] = (head,)
            shapes["self_attn.k_norm.weight"] = (head,)
        return shapes


def _refuse_sliding_window(data: dict[str, Any]) -> None:
    window = data.get("sliding_window")
    used = data.get("use_sliding_window", window is not None)
    if used and window is not None and window < data.get("max_position_embeddings", math.inf):
        raise UnsupportedModel(f"config.json: sliding_window {window} is not supported")


def _scaling(data: dict[str, Any] | None, context: int) -> RopeScaling | None:
    if data is None:
        return None
    kind = data.get("rope_type") or data.get("type")
    if kind == "default":
        return None
    if kind != "llama3":
        raise UnsupportedModel(f"config.json: rope scaling {kind!r}; only llama3 is supported")
    return RopeScaling(
        factor=float(data["factor"]),
        low_freq_factor=float(data["low_freq_factor"]),
        high_freq_factor=float(data["high_freq_factor"]),
        original_context=int(data.get("original_max_position_embeddings", context)),
    )
