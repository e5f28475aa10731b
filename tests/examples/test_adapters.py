"""The committed example adapters: small, portable, accepted by the platform's own check, and visibly different."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from inference.adapter_format import check_adapter
from inference.base_shapes import BaseShapes
from inference.golden import distance, parse_golden

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
ADAPTERS = sorted(path.name for path in (EXAMPLES / "adapters").iterdir() if path.is_dir())

SMOLLM2 = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 64,
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
}


def test_there_are_enough() -> None:
    assert len(ADAPTERS) >= 3


@pytest.mark.parametrize("name", ADAPTERS)
def test_is_small_and_portable(name: str) -> None:
    directory = EXAMPLES / "adapters" / name
    assert {path.name for path in directory.iterdir()} == {
        "adapter_config.json",
        "adapter_model.safetensors",
        "README.md",
        "golden.json",
    }
    assert (directory / "adapter_model.safetensors").stat().st_size <= 1_000_000
    config = json.loads((directory / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "HuggingFaceTB/SmolLM2-135M-Instruct"
    assert isinstance(config["target_modules"], list)


@pytest.mark.parametrize("name", ADAPTERS)
def test_its_references_are_of_another_model_than_the_base(name: str) -> None:
    golden = parse_golden((EXAMPLES / "adapters" / name / "golden.json").read_bytes())
    without = [prompt.base for prompt in golden.prompts if prompt.base is not None]
    assert len(without) == len(golden.prompts)
    assert distance([prompt.adapter for prompt in golden.prompts], without).mean > 0.5


@pytest.mark.parametrize("name", ADAPTERS)
def test_passes_the_platforms_check(name: str) -> None:
    directory = EXAMPLES / "adapters" / name
    config = json.loads((directory / "adapter_config.json").read_text())
    spec = check_adapter(directory, BaseShapes.from_config(SMOLLM2))
    layers = len(config.get("layers_to_transform") or range(SMOLLM2["num_hidden_layers"]))  # type: ignore[call-overload]
    assert len(spec.targets) == layers * len(config["target_modules"])
    assert {target.rank for target in spec.targets} == {config["r"]} == {spec.max_rank}
    divisor = config["r"] ** 0.5 if config["use_rslora"] else config["r"]
    assert {round(target.scaling, 9) for target in spec.targets} == {round(config["lora_alpha"] / divisor, 9)}


def test_a_batch_of_them_mixes_ranks_and_modules() -> None:
    configs = [json.loads((EXAMPLES / "adapters" / name / "adapter_config.json").read_text()) for name in ADAPTERS]
    assert len({config["r"] for config in configs}) >= 3
    assert len({tuple(config["target_modules"]) for config in configs}) >= 3
    assert any(config["use_rslora"] for config in configs)
