"""What a model directory may hold, and how it is refused. The families' arithmetic is in ``test_families.py``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from inference.core.step import Row
from inference.errors import ConfigError, UnsupportedModel
from inference.model_config import ModelConfig
from inference.protocol import SamplingParams
from inference.runner import TorchRunner
from tests.inference import runs
from tests.inference.tiny_model import build_tiny_model

MISTRAL = {"architectures": ["MistralForCausalLM"], "model_type": "mistral"}
QWEN3 = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}


def logits_of(model: Path, tokens: list[int]) -> torch.Tensor:
    runner = TorchRunner.load(model, num_blocks=16, num_slots=0, max_model_len=256)
    return runs.logits_of(runner, tokens, [len(tokens)], range(5, 16))


def test_sharded_weights_load_like_whole_ones(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    from inference.model_store import register

    whole = build_tiny_model(tmp_path / "whole", tie_word_embeddings=False)
    source = tmp_path / "source"
    AutoModelForCausalLM.from_pretrained(whole, dtype=torch.float32).save_pretrained(source, max_shard_size="100KB")
    assert len(list(source.glob("model-*.safetensors"))) > 1
    for name in ("tokenizer.json", "config.json"):
        (source / name).write_bytes((whole / name).read_bytes())
    register(source, tmp_path / "sharded")
    tokens = list(range(20, 60))
    assert torch.equal(logits_of(tmp_path / "sharded", tokens), logits_of(whole, tokens))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "GPT2LMHeadModel"),
        ({"architectures": []}, "architecture None"),
        ({"quantization_config": {"quant_method": "awq"}}, "awq"),
        ({"quantization_config": "int4"}, "quantization_config"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping 50.0"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping 30.0"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5"),
        ({"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}}, "partial_rotary_factor 0.5"),
        ({"head_dim": 23}, "head_dim 23 is odd"),
        ({"head_dim": 0}, "head_dim"),
        ({"head_dim": None, "num_attention_heads": 5}, "hidden_size 64"),
        ({"num_key_value_heads": 3}, "num_key_value_heads 3"),
        ({"num_hidden_layers": "2"}, "num_hidden_layers"),
        ({"rms_norm_eps": None}, "rms_norm_eps"),
        ({"sliding_window": 128}, "sliding_window 128"),
        ({"layer_types": ["sliding_attention", "full_attention"]}, "layer_types"),
        (MISTRAL | {"attention_bias": True}, "attention_bias"),
        (MISTRAL, "sliding_window is missing"),
        (MISTRAL | {"sliding_window": 0}, "sliding_window"),
        (MISTRAL | {"sliding_window": 8, "layer_types": ["full_attention", "sliding_attention"]}, "layer_types"),
        (QWEN3 | {"head_dim": None}, "head_dim is missing"),
        (QWEN3 | {"mlp_bias": True}, "mlp_bias"),
        (QWEN3 | {"use_sliding_window": True, "sliding_window": 8}, "max_window_layers"),
        (QWEN3 | {"layer_types": ["sliding_attention"] * 2}, "sliding_attention without a sliding_window"),
        (QWEN3 | {"layer_types": ["linear_attention"] * 2}, "layer_types"),
        ({"rope_scaling": {"rope_type": "longrope", "factor": 4.0}}, "longrope"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 4.0}}, "low_freq_factor"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "mscale": 0.7}}, "mscale"),
        ({"rope_scaling": {"rope_type": "linear"}}, "factor"),
        ({"rope_scaling": "linear"}, "rope_scaling"),
    ],
)
def test_unsupported_configurations_are_refused_by_name(
    change: dict[str, object], named: str, tiny_model_dir: Path
) -> None:
    config = json.loads((tiny_model_dir / "config.json").read_text()) | change
    with pytest.raises(UnsupportedModel, match=named):
        ModelConfig.from_json(config)


@pytest.mark.parametrize("key", ["intermediate_size", "vocab_size", "max_position_embeddings", "rms_norm_eps"])
def test_a_missing_key_is_named(key: str, tiny_model_dir: Path) -> None:
    config = json.loads((tiny_model_dir / "config.json").read_text())
    del config[key]
    with pytest.raises(UnsupportedModel, match=key):
        ModelConfig.from_json(config)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"num_blocks": 0}, "num_blocks"),
        ({"max_model_len": 100_000}, "max_model_len 100000"),
        ({"dtype": "int3"}, "int3"),
        ({"num_slots": -1}, "num_slots"),
    ],
)
def test_a_runner_refuses_what_cannot_be(settings: dict[str, object], named: str, tiny_model_dir: Path) -> None:
    base: dict[str, object] = {"num_blocks": 4, "num_slots": 1, "max_model_len": 64}
    with pytest.raises(ConfigError, match=named):
        TorchRunner.load(tiny_model_dir, **(base | settings))  # type: ignore[arg-type]


def test_bfloat16_runs(tiny_model_dir: Path) -> None:
    runner = TorchRunner.load(tiny_model_dir, num_blocks=4, num_slots=0, max_model_len=64, dtype="bfloat16")
    row = Row(tokens=[5, 6, 7], start=0, block_table=[0], params=SamplingParams(temperature=0.0))
    (result,) = runner.run([row])
    assert result is not None
    assert len(result.tokens) == 1
    assert runner.kv_dtype == "bfloat16"
