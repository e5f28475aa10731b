"""Reads a llama.cpp GGUF file of a Llama model into what a Hugging Face directory would hold, dequantised to fp32.

llama.cpp stores q and k with each head's rows interleaved for its own rotation (row ``2i + j`` of a head is row
``i + j·D/2`` of the original); reading undoes that. Torch-free: numpy, ``gguf`` and ``tokenizers`` only.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from inference.errors import UnsupportedModel

GGUF_MAGIC = b"GGUF"

_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_BLOCK = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_NAME = re.compile(r"(?:blk\.(?P<layer>\d+)\.)?(?P<part>\w+)\.weight")
# Keys that change the arithmetic, and the values that do not.
_NEUTRAL: dict[str, tuple[object, ...]] = {
    "llama.rope.scaling.type": (None, "none", "linear"),
    "llama.expert_count": (None, 0),
    "llama.attention.sliding_window": (None, 0),
    "llama.attention.scale": (None,),
    "llama.logit_scale": (None, 1.0),
    "llama.embedding_scale": (None, 1.0),
    "llama.residual_scale": (None, 1.0),
}
_ROPE_FACTORS = "rope_freqs.weight"
_LLAMA3: dict[str, Any] = {
    "rope_type": "llama3",
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
# token_type values of llama.cpp's vocabulary
_CONTROL, _USER_DEFINED = 3, 4


class GgufFile:
    """One GGUF file. Raises :class:`~inference.errors.UnsupportedModel` naming what it cannot convert."""

    def __init__(self, path: Path) -> None:
        import gguf

        try:
            self._reader = gguf.GGUFReader(path)
        except (ValueError, OSError) as error:
            raise UnsupportedModel(f"{path.name}: not a readable GGUF file ({error})") from error
        architecture = self._field("general.architecture")
        if architecture != "llama":
            raise UnsupportedModel(f"{path.name}: GGUF architecture {architecture!r}; only 'llama' can be converted")
        for key, neutral in _NEUTRAL.items():
            if self._field(key, None) not in neutral:
                raise UnsupportedModel(
                    f"{path.name}: {key} {self._field(key)!r} is not supported in a GGUF; register the HF directory"
                )

    def config(self) -> dict[str, Any]:
        """``config.json``."""
        heads = self._field("llama.attention.head_count")
        hidden = self._field("llama.embedding_length")
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": len(self._field("tokenizer.ggml.tokens")),
            "hidden_size": hidden,
            "intermediate_size": self._field("llama.feed_forward_length"),
            "num_hidden_layers": self._field("llama.block_count"),
            "num_attention_heads": heads,
            "num_key_value_heads": self._field("llama.attention.head_count_kv", heads),
            "head_dim": self._field("llama.attention.key_length", hidden // heads),
            "max_position_embeddings": self._field("llama.context_length"),
            # stored as float32: seven significant digits are what was meant (9.999999747378752e-06 is 1e-05)
            "rms_norm_eps": float(f"{self._field('llama.attention.layer_norm_rms_epsilon'):.7g}"),
            "rope_theta": self._rope_theta(),
            "hidden_act": "silu",
            "attention_bias": False,
            "mlp_bias": False,
            "tie_word_embeddings": not any(tensor.name == "output.weight" for tensor in self._reader.tensors),
            "torch_dtype": "float32",
            **self._rope_scaling(),
            **self._special_ids(),
        }

    def tensors(self) -> dict[str, npt.NDArray[np.float32]]:
        """Every weight in float32 under its Hugging Face name, C-contiguous."""
        import gguf

        heads = self._field("llama.attention.head_count")
        kv_heads = self._field("llama.attention.head_count_kv", heads)
        result: dict[str, npt.NDArray[np.float32]] = {}
        for tensor in self._reader.tensors:
            if tensor.name == _ROPE_FACTORS:
                continue  # the configuration says the same
            name = _hf_name(tensor.name)
            try:
                values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
            except NotImplementedError as error:
                kind = tensor.tensor_type.name
                raise UnsupportedModel(f"tensor {tensor.name}: quantisation {kind} cannot be dequantised") from error
            if ".attn_q." in tensor.name:
                values = _deinterleave(values, heads)
            elif ".attn_k." in tensor.name:
                values = _deinterleave(values, kv_heads)
            result[name] = np.ascontiguousarray(values, dtype=np.float32)
        return result

    def _rope_theta(self) -> float:
        return float(f"{self._field('llama.rope.freq_base', 10_000.0):.7g}")

    def _rope_scaling(self) -> dict[str, Any]:
        """Llama 3's scaling is stored as its result, one divisor a frequency: find the settings, and check them."""
        if self._field("llama.rope.scaling.type", "none") == "linear":
            return {"rope_scaling": {"rope_type": "linear", "factor": float(self._field("llama.rope.scaling.factor"))}}
        stored = next((tensor.data for tensor in self._reader.tensors if tensor.name == _ROPE_FACTORS), None)
        if stored is None:
            return {}
        factor = float(np.max(stored))
        if not np.allclose(_llama3_divisors(self._rope_theta(), 2 * len(stored), factor), stored, rtol=1e-4):
            raise UnsupportedModel(f"tensor {_ROPE_FACTORS}: not Llama 3's rope scaling; register the HF directory")
        return {"rope_scaling": _LLAMA3 | {"factor": factor}}

    def chat_template(self) -> str | None:
        return cast("str | None", self._field("tokenizer.chat_template", None))

    def generation_config(self) -> dict[str, Any]:
        return self._special_ids()

    def tokenizer(self) -> str:
        """``tokenizer.json`` of a byte-level BPE vocabulary.

        Built here rather than by transformers' converter, which knows one pre-tokeniser for all: its plain GPT-2 one
        splits "   1" into two spaces and " 1" where SmolLM takes three spaces and "1".
        """
        from tokenizers import AddedToken, Tokenizer, decoders, models, processors

        if (kind := self._field("tokenizer.ggml.model")) != "gpt2":
            raise UnsupportedModel(f"tokenizer.ggml.model {kind!r}: only 'gpt2' can be converted from a GGUF")
        tokens = self._field("tokenizer.ggml.tokens")
        merges = [tuple(merge.split(" ", 1)) for merge in self._field("tokenizer.ggml.merges")]
        tokenizer = Tokenizer(models.BPE(vocab={text: i for i, text in enumerate(tokens)}, merges=merges))
        tokenizer.pre_tokenizer = _pre_tokenizer(self._field("tokenizer.ggml.pre", "default"))
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
        types = self._field("tokenizer.ggml.token_type")
        added = [(text, kind) for text, kind in zip(tokens, types, strict=True) if kind in (_CONTROL, _USER_DEFINED)]
        tokenizer.add_special_tokens([AddedToken(t, normalized=False, special=True) for t, k in added if k == _CONTROL])
        tokenizer.add_tokens([AddedToken(t, normalized=False) for t, k in added if k == _USER_DEFINED])
        if self._field("tokenizer.ggml.add_bos_token", False):
            bos = self._field("tokenizer.ggml.bos_token_id")
            tokenizer.post_processor = processors.TemplateProcessing(
                single=f"{tokens[bos]} $A", pair=f"{tokens[bos]} $A $B", special_tokens=[(tokens[bos], bos)]
            )
        return tokenizer.to_str(pretty=True)

    def tokenizer_config(self) -> dict[str, Any]:
        tokens = self._field("tokenizer.ggml.tokens")
        special = {name.removesuffix("_id"): tokens[i] for name, i in self._special_ids().items()}
        return {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "add_bos_token": self._field("tokenizer.ggml.add_bos_token", False),
            "clean_up_tokenization_spaces": False,
            "model_max_length": self._field("llama.context_length"),
            **special,
        }

    def _special_ids(self) -> dict[str, int]:
        names = {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding"}
        ids = {name: self._field(f"tokenizer.ggml.{key}_token_id", None) for name, key in names.items()}
        return {name: value for name, value in ids.items() if value is not None}

    def _field(self, key: str, *default: Any) -> Any:
        field = self._reader.get_field(key)
        if field is not None:
            return field.contents()
        if default:
            return default[0]
        raise UnsupportedModel(f"the GGUF has no {key}")


def _hf_name(name: str) -> str:
    match = _NAME.fullmatch(name)
    part = match["part"] if match else ""
    if match and match["layer"] is None and part in _TOP:
        return f"{_TOP[part]}.weight"
    if match and match["layer"] is not None and part in _BLOCK:
        return f"model.layers.{match['layer']}.{_BLOCK[part]}.weight"
    raise UnsupportedModel(f"tensor {name}: not a tensor of a plain Llama model")


def _deinterleave(weight: npt.NDArray[np.float32], heads: int) -> npt.NDArray[np.float32]:
    """``[heads·D, in]``: rows of a head from (pair, half) order back to (half, pair) order."""
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def _llama3_divisors(theta: float, head_dim: int, factor: float) -> npt.NDArray[np.float64]:
    """By what Llama 3 divides each frequency: 1 for short wavelengths, ``factor`` for long ones, a ramp between."""
    wavelengths = 2 * np.pi * theta ** (np.arange(0, head_dim, 2) / head_dim)
    low, high = _LLAMA3["low_freq_factor"], _LLAMA3["high_freq_factor"]
    turns = _LLAMA3["original_max_position_embeddings"] / wavelengths
    smooth = np.clip((turns - low) / (high - low), 0, 1)
    return cast("npt.NDArray[np.float64]", 1 / ((1 - smooth) / factor + smooth))


def _pre_tokenizer(name: str) -> Any:
    """llama.cpp names the pre-tokeniser; these are the ones whose meaning is known here."""
    from tokenizers import Regex, pre_tokenizers

    def split(pattern: str) -> Any:
        cut = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
        return pre_tokenizers.Sequence([cut, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])

    words = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
    rest = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if name in ("default", "gpt-2"):
        return byte_level
    if name == "smollm":
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
    if name == "llama-bpe":
        return split(rf"{words}|\p{{N}}{{1,3}}|{rest}")
    if name == "qwen2":
        return split(rf"{words}|\p{{N}}|{rest}")
    raise UnsupportedModel(f"tokenizer.ggml.pre {name!r}: unknown pre-tokeniser; register the HF directory instead")
