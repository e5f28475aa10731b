"""What a decoder's ``config.json`` says, in the worker's own terms. Torch-free: registration and intake read it too."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inference.errors import ConfigError, UnsupportedModel
from inference.rope_config import RopeConfig

EMBEDDING = "model.embed_tokens"
HEAD = "lm_head"


@dataclass(frozen=True, slots=True)
class _Family:
    """What an architecture fixes, and which keys it reads at all: transformers ignores the others.

    :param qkv_bias: q, k and v always carry a bias.
    :param bias_keys: of ``attention_bias`` (q, k, v and o) and ``mlp_bias``, those that are read.
    :param sliding: ``never``; ``always`` where ``sliding_window`` is set; or ``asked`` for by ``use_sliding_window``.
    """

    qkv_bias: bool = False
    bias_keys: tuple[str, ...] = ()
    qk_norm: bool = False
    sliding: str = "never"


FAMILIES: Mapping[str, _Family] = {
    "LlamaForCausalLM": _Family(bias_keys=("attention_bias", "mlp_bias")),
    "MistralForCausalLM": _Family(sliding="always"),
    "Qwen2ForCausalLM": _Family(qkv_bias=True, sliding="asked"),
    "Qwen3ForCausalLM": _Family(bias_keys=("attention_bias",), qk_norm=True, sliding="asked"),
}

# Keys of other architectures' configurations that change the arithmetic, and the values that do not.
_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "attn_logit_softcapping": (None,),
    "final_logit_softcapping": (None,),
    "attention_multiplier": (None,),
    "embedding_multiplier": (None, 1, 1.0),
    "residual_multiplier": (None, 1, 1.0),
    "logits_scaling": (None, 1, 1.0),
    "logit_scale": (None, 1, 1.0),
    "query_pre_attn_scalar": (None,),
    "no_rope_layers": (None, []),
    "compression_config": (None,),
}


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Shape of one Llama-like decoder. The boolean axes are what tells the supported families apart.

    :param windows: per layer, how many positions a token sees, its own included; ``None``: all before it.
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
    rope: RopeConfig
    windows: tuple[int | None, ...]
    tied: bool
    attention_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool

    @classmethod
    def load(cls, directory: Path) -> ModelConfig:
        """Of a model directory. Raises :class:`~inference.errors.ConfigError`, as :meth:`from_json` does."""
        path = directory / "config.json"
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path}: {error}") from error
        if not isinstance(data, dict):
            raise ConfigError(f"{path}: not a JSON object")
        return cls.from_json(data)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> ModelConfig:
        """Raises :class:`~inference.errors.UnsupportedModel` that names the key this worker cannot honour."""
        architectures = data.get("architectures")
        architecture = architectures[0] if isinstance(architectures, list) and architectures else None
        if not isinstance(architecture, str) or architecture not in FAMILIES:
            raise UnsupportedModel(f"config.json: architecture {architecture!r}; supported: {', '.join(FAMILIES)}")
        quantized = data.get("quantization_config")
        if quantized:
            method = quantized.get("quant_method") if isinstance(quantized, dict) else None
            raise UnsupportedModel(f"config.json: quantization_config (quant_method {method!r}) is not supported")
        if data.get("hidden_act", "silu") != "silu":
            raise UnsupportedModel(f"config.json: hidden_act {data['hidden_act']!r}; only silu is supported")
        for key, neutral in _NEUTRAL.items():
            if data.get(key) not in neutral:
                raise UnsupportedModel(f"config.json: {key} {data[key]!r} is not supported")
        family = FAMILIES[architecture]
        for key in ("attention_bias", "mlp_bias"):
            fixed = family.qkv_bias and key == "attention_bias"
            if data.get(key) and key not in family.bias_keys and not fixed:
                raise UnsupportedModel(f"config.json: {key} is not supported with {architecture}")
        return cls._read(architecture, family, data)

    @classmethod
    def _read(cls, architecture: str, family: _Family, data: dict[str, Any]) -> ModelConfig:
        hidden, heads, layers = (
            _whole(data, key) for key in ("hidden_size", "num_attention_heads", "num_hidden_layers")
        )
        head_dim, kv_heads = _head_shape(data, hidden, heads, family)
        context = _whole(data, "max_position_embeddings")
        eps = data.get("rms_norm_eps")
        if type(eps) not in (int, float) or eps <= 0:  # type: ignore[operator]
            raise UnsupportedModel("config.json: rms_norm_eps is missing, or not a positive number")
        bias = "attention_bias" in family.bias_keys and bool(data.get("attention_bias"))
        return cls(
            architecture=architecture,
            vocab_size=_whole(data, "vocab_size"),
            hidden_size=hidden,
            intermediate_size=_whole(data, "intermediate_size"),
            num_layers=layers,
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=head_dim,
            max_position=context,
            rms_eps=float(eps),  # type: ignore[arg-type]
            rope=RopeConfig.from_json(data, context),
            windows=_windows(data, layers, family),
            tied=bool(data.get("tie_word_embeddings", False)),
            attention_bias=bias or family.qkv_bias,
            output_bias=bias,
            mlp_bias="mlp_bias" in family.bias_keys and bool(data.get("mlp_bias")),
            qk_norm=family.qk_norm,
        )

    def linears(self) -> dict[str, tuple[int, int]]:
        """Every linear of every layer in the model's order: module → (out_features, in_features)."""
        return {
            f"model.layers.{layer}.{name}": (rows, columns)
            for layer in range(self.num_layers)
            for name, (rows, columns, _) in self._layer_linears().items()
        }

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Every tensor the weights must hold, by its name in a Hugging Face checkpoint."""
        shapes: dict[str, tuple[int, ...]] = {
            f"{EMBEDDING}.weight": (self.vocab_size, self.hidden_size),
            "model.norm.weight": (self.hidden_size,),
        }
        if not self.tied:
            shapes[f"{HEAD}.weight"] = (self.vocab_size, self.hidden_size)
        for layer in range(self.num_layers):
            for name, shape in self._layer_shapes().items():
                shapes[f"model.layers.{layer}.{name}"] = shape
        return shapes

    def _layer_linears(self) -> dict[str, tuple[int, int, bool]]:
        hidden, inner = self.hidden_size, self.intermediate_size
        query, key_value = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        return {
            "self_attn.q_proj": (query, hidden, self.attention_bias),
            "self_attn.k_proj": (key_value, hidden, self.attention_bias),
            "self_attn.v_proj": (key_value, hidden, self.attention_bias),
            "self_attn.o_proj": (hidden, query, self.output_bias),
            "mlp.gate_proj": (inner, hidden, self.mlp_bias),
            "mlp.up_proj": (inner, hidden, self.mlp_bias),
            "mlp.down_proj": (hidden, inner, self.mlp_bias),
        }

    def _layer_shapes(self) -> dict[str, tuple[int, ...]]:
        shapes: dict[str, tuple[int, ...]] = {
            "input_layernorm.weight": (self.hidden_size,),
            "post_attention_layernorm.weight": (self.hidden_size,),
        }
        for name, (rows, columns, bias) in self._layer_linears().items():
            shapes[f"{name}.weight"] = (rows, columns)
            if bias:
                shapes[f"{name}.bias"] = (rows,)
        if self.qk_norm:
            shapes["self_attn.q_norm.weight"] = (self.head_dim,)
            shapes["self_attn.k_norm.weight"] = (self.head_dim,)
        return shapes


def end_tokens(config: Mapping[str, Any], generation: Mapping[str, Any]) -> frozenset[int]:
    """The model's own end tokens: ``generation_config.json``'s where it names any, else ``config.json``'s."""
    for source in (generation, config):
        found = source.get("eos_token_id")
        if found is not None:
            return frozenset([found] if isinstance(found, int) else found)
    return frozenset()


def _whole(data: dict[str, Any], key: str) -> int:
    value = data.get(key)
    if value is None:
        raise UnsupportedModel(f"config.json: {key} is missing")
    if type(value) is not int or value < 1:
        raise UnsupportedModel(f"config.json: {key} has to be a whole number from 1")
    return value


def _head_shape(data: dict[str, Any], hidden: int, heads: int, family: _Family) -> tuple[int, int]:
    """Head dimension and the number of KV heads. Where the families' own defaults differ, a missing key is refused."""
    if data.get("head_dim") is not None:
        head_dim = _whole(data, "head_dim")
    elif family.qk_norm:
        raise UnsupportedModel("config.json: head_dim is missing")
    elif hidden % heads:
        raise UnsupportedModel(f"config.json: hidden_size {hidden} is not a multiple of num_attention_heads {heads}")
    else:
        head_dim = hidden // heads
    if head_dim % 2:
        raise UnsupportedModel(f"config.json: head_dim {head_dim} is odd; the rotation pairs its halves")
    if family.sliding != "never" and "num_key_value_heads" not in data:
        raise UnsupportedModel("config.json: num_key_value_heads is missing")
    kv_heads = heads if data.get("num_key_value_heads") is None else _whole(data, "num_key_value_heads")
    if heads % kv_heads:
        raise UnsupportedModel(
            f"config.json: num_attention_heads {heads} is not a multiple of num_key_value_heads {kv_heads}"
        )
    return head_dim, kv_heads


def _windows(data: dict[str, Any], layers: int, family: _Family) -> tuple[int | None, ...]:
    window = data.get("sliding_window")
    if family.sliding == "always" and "sliding_window" not in data:
        raise UnsupportedModel("config.json: sliding_window is missing (null where there is none)")
    if family.sliding == "never" and window is not None and window < data["max_position_embeddings"]:
        raise UnsupportedModel(f"config.json: sliding_window {window!r} is not supported with this architecture")
    asked = family.sliding == "always" or (family.sliding == "asked" and bool(data.get("use_sliding_window", False)))
    window = _whole(data, "sliding_window") if asked and window is not None else None
    kinds = data.get("layer_types")
    if kinds is None or family.sliding != "asked":
        first = layers if window is None else _first_sliding(data) if family.sliding == "asked" else 0
        implied = [_SLIDING if layer >= first else _FULL for layer in range(layers)]
        if kinds not in (None, implied):
            raise UnsupportedModel("config.json: layer_types is not supported with this architecture")
        kinds = implied
    if not isinstance(kinds, list) or len(kinds) != layers or not all(kind in (_FULL, _SLIDING) for kind in kinds):
        raise UnsupportedModel(f"config.json: layer_types has to name {_FULL} or {_SLIDING} for each layer")
    if window is None and _SLIDING in kinds:
        raise UnsupportedModel(f"config.json: layer_types asks for {_SLIDING} without a sliding_window")
    return tuple(window if kind == _SLIDING else None for kind in kinds)


_FULL, _SLIDING = "full_attention", "sliding_attention"


def _first_sliding(data: dict[str, Any]) -> int:
    """Qwen's ``max_window_layers``: the layers before it see everything."""
    first = data.get("max_window_layers")
    if type(first) is not int or first < 0:
        raise UnsupportedModel("config.json: use_sliding_window needs max_window_layers, a whole number from 0")
    return first
