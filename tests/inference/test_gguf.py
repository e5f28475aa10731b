"""A GGUF of a Llama model becomes the directory that it was made from."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from safetensors.numpy import load_file

from inference.errors import UnsupportedModel
from inference.model_config import ModelConfig
from inference.model_store import register
from tests.inference.tiny_model import build_tiny_model

NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def write_gguf(model_dir: Path, out: Path, extra: dict[str, Any], rope: list[float] | None) -> Path:
    """As llama.cpp's own converter lays a Llama model out, in float32."""
    config = json.loads((model_dir / "config.json").read_text())
    tokenizer = json.loads((model_dir / "tokenizer.json").read_text())
    writer = gguf.GGUFWriter(out, "llama")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    vocabulary = sorted(tokenizer["model"]["vocab"], key=tokenizer["model"]["vocab"].get)
    special = {token["content"] for token in tokenizer["added_tokens"]}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(vocabulary)
    writer.add_token_types([3 if token in special else 1 for token in vocabulary])
    writer.add_token_merges([" ".join(merge) for merge in tokenizer["model"]["merges"]])
    writer.add_eos_token_id(2)
    for key, value in extra.items():
        (writer.add_string if isinstance(value, str) else writer.add_float32)(key, value)
    for name, stored in load_file(model_dir / "model.safetensors").items():
        module, values = name.removesuffix(".weight"), stored
        heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}.get(module[-6:])
        prefix = ""
        if module.startswith("model.layers."):
            _, _, layer, module = module.split(".", 3)
            prefix = f"blk.{layer}."
        if heads:
            rows, columns = values.shape
            values = values.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)
        writer.add_tensor(f"{prefix}{NAMES[module]}.weight", np.ascontiguousarray(values))
    if rope is not None:
        writer.add_tensor("rope_freqs.weight", np.array(rope, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


def llama3_divisors(theta: float, head_dim: int, factor: float) -> list[float]:
    """As llama.cpp's converter computes them."""
    found = []
    for index in range(0, head_dim, 2):
        wavelength = 2 * math.pi * theta ** (index / head_dim)
        if wavelength < 8192 / 4:
            found.append(1.0)
        elif wavelength > 8192:
            found.append(factor)
        else:
            smooth = (8192 / wavelength - 1) / (4 - 1)
            found.append(1 / ((1 - smooth) / factor + smooth))
    return found


@pytest.mark.parametrize(
    ("overrides", "extra", "rope"),
    [
        ({}, {}, None),
        ({"tie_word_embeddings": False}, {}, None),
        (
            {"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
            {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0},
            None,
        ),
        ({"rope_theta": 500_000.0, "rope_scaling": LLAMA3}, {}, llama3_divisors(500_000.0, 24, 32.0)),
    ],
    ids=["tied", "untied", "linear rope", "llama 3 rope"],
)
def test_a_converted_model_is_the_one_it_was_made_from(
    overrides: dict[str, object], extra: dict[str, Any], rope: list[float] | None, tmp_path: Path
) -> None:
    model_dir = build_tiny_model(tmp_path / "tiny", **overrides)
    register(write_gguf(model_dir, tmp_path / "tiny.gguf", extra, rope), tmp_path / "converted")
    ours, theirs = (load_file(directory / "model.safetensors") for directory in (tmp_path / "converted", model_dir))
    assert ours.keys() == theirs.keys()
    assert all(np.array_equal(ours[name], theirs[name]) for name in theirs)
    assert ModelConfig.load(tmp_path / "converted") == ModelConfig.load(model_dir)


@pytest.mark.parametrize(
    ("extra", "rope", "named"),
    [
        ({}, [1.0, 7.0] * 6, "rope_freqs"),
        ({"llama.rope.scaling.type": "longrope"}, None, "'longrope'"),
        ({"llama.logit_scale": 0.5}, None, "llama.logit_scale"),
    ],
)
def test_what_cannot_be_converted_is_refused_by_name(
    extra: dict[str, Any], rope: list[float] | None, named: str, tmp_path: Path
) -> None:
    model_dir = build_tiny_model(tmp_path / "tiny")
    with pytest.raises(UnsupportedModel, match=named):
        register(write_gguf(model_dir, tmp_path / "tiny.gguf", extra, rope), tmp_path / "converted")
    assert not (tmp_path / "converted").exists()
