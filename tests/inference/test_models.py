"""The decoder against transformers, on random two-layer models of every supported family."""

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
from tests.inference.tiny_model import build_tiny_model

FAMILIES: dict[str, dict[str, object]] = {
    "llama": {},
    "llama, untied head": {"tie_word_embeddings": False},
    "llama, biases": {"attention_bias": True, "mlp_bias": True},
    "llama 3 rope": {
        "rope_theta": 500_000.0,
        "max_position_embeddings": 1024,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    },
    "mistral": {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": None},
    "qwen2": {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "head_dim": 16,
        "use_sliding_window": False,
    },
    "qwen3": {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "use_sliding_window": False},
}


def logits_of(model: Path, tokens: list[int], chunks: list[int]) -> torch.Tensor:
    """The logits of every position, computed in prefill chunks of these sizes."""
    runner = TorchRunner.load(model, num_blocks=16, num_slots=0, max_model_len=256)
    seen: list[torch.Tensor] = []
    forward = runner._decoder.forward

    def record(*arguments: object) -> torch.Tensor:
        seen.append(forward(*arguments))  # type: ignore[arg-type]
        return seen[-1]

    runner._decoder.forward = record  # type: ignore[method-assign,assignment]
    start = 0
    for size in chunks:
        runner.run([Row(tokens=tokens[start : start + size], start=start, block_table=list(range(5, 16)))])
        start += size
    assert start == len(tokens)
    with torch.inference_mode():
        return runner._decoder.logits(torch.cat(seen))


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_equal_transformers(family: str, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    model = build_tiny_model(tmp_path / "tiny", **FAMILIES[family])
    tokens = torch.randint(3, 300, (100,), generator=torch.Generator().manual_seed(0)).tolist()
    reference = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    with torch.inference_mode():
        expected = reference(torch.tensor([tokens])).logits[0]
    assert expected.std() > 0.3, "a model whose logits hardly differ proves nothing"
    for chunks in ([100], [33, 1, 40, 1, 25], [1] * 100):
        torch.testing.assert_close(logits_of(model, tokens, chunks), expected, atol=2e-4, rtol=1e-4)


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
    assert torch.equal(logits_of(tmp_path / "sharded", tokens, [40]), logits_of(whole, tokens, [40]))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "GPT2LMHeadModel"),
        ({"architectures": []}, "architecture None"),
        ({"quantization_config": {"quant_method": "awq"}}, "awq"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"sliding_window": 128}, "sliding_window 128"),
        ({"rope_scaling": {"rope_type": "longrope", "factor": 4.0}}, "longrope"),
    ],
)
def test_unsupported_configurations_are_refused_by_name(
    change: dict[str, object], named: str, tiny_model_dir: Path
) -> None:
    config = json.loads((tiny_model_dir / "config.json").read_text()) | change
    with pytest.raises(UnsupportedModel, match=named):
        ModelConfig.from_json(config)


def test_a_missing_key_is_named(tiny_model_dir: Path) -> None:
    config = json.loads((tiny_model_dir / "config.json").read_text())
    del config["intermediate_size"]
    with pytest.raises(UnsupportedModel, match="intermediate_size"):
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
