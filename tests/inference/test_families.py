"""Every supported family against transformers, on random models: logits, greedy tokens, chunks and prefix hits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from inference.runner import TorchRunner
from tests.inference.runs import Stream, clear_greedy, logits_of, reference_logits, relative_error, run_greedy
from tests.inference.tiny_model import build_tiny_model

# Head dimensions of 16 and 32 are for the compiled attention, the model's own of 24 is for torch's.
MISTRAL = {"architectures": ["MistralForCausalLM"], "model_type": "mistral"}
QWEN2 = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "head_dim": 16}
QWEN3 = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "use_sliding_window": False}
UNTIED = {"tie_word_embeddings": False}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}

FAMILIES: dict[str, dict[str, object]] = {
    "llama 2": {},
    "llama 2, as many KV heads as heads": {"num_key_value_heads": 4},
    "llama 2, untied": UNTIED,
    "llama 2, head_dim 64": {"head_dim": 64, "num_attention_heads": 8},
    "llama, biases": {"attention_bias": True, "mlp_bias": True},
    "llama 3.1": UNTIED | {"rope_theta": 500_000.0, "max_position_embeddings": 1024, "rope_scaling": LLAMA3},
    "llama 3.2, as transformers 5 writes it": {
        "rope_theta": None,
        "rope_parameters": LLAMA3 | {"rope_theta": 500_000.0},
        "max_position_embeddings": 1024,
    },
    "linear rope": {"rope_scaling": {"type": "linear", "factor": 4.0}},
    "dynamic rope": {"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}},
    "yarn rope": QWEN2
    | {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}},
    "mistral, no window": MISTRAL | UNTIED | {"sliding_window": None},
    "mistral, a window longer than the prompt": MISTRAL | {"sliding_window": 120},
    "mistral, a window longer than the prompt, head_dim 32": MISTRAL | {"sliding_window": 120, "head_dim": 32},
    "mistral, a window shorter than the prompt": MISTRAL | UNTIED | {"sliding_window": 24},
    "mistral, a window shorter than the prompt, head_dim 32": MISTRAL | {"sliding_window": 24, "head_dim": 32},
    "mistral, a window shorter than a chunk": MISTRAL | {"sliding_window": 5},
    "mistral, a window shorter than a chunk, head_dim 16": MISTRAL | {"sliding_window": 5, "head_dim": 16},
    "mistral, a window of two": MISTRAL | {"sliding_window": 2},  # of one, transformers' own cache is wrong
    "qwen2, tied": QWEN2 | {"use_sliding_window": False, "sliding_window": 8, "max_window_layers": 0},
    "qwen2, untied": QWEN2 | UNTIED | {"use_sliding_window": False},
    "qwen2, sliding from layer 1": QWEN2 | {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 1},
    "qwen3, head_dim of its own": QWEN3,
    "qwen3, biases, untied": QWEN3 | UNTIED | {"attention_bias": True},
    "qwen3, layer_types": QWEN3
    | {"use_sliding_window": True, "sliding_window": 20, "layer_types": ["sliding_attention", "full_attention"]},
}
TOKENS = torch.randint(3, 300, (100,), generator=torch.Generator().manual_seed(0)).tolist()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_equals_transformers(family: str, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    directory = build_tiny_model(tmp_path / "tiny", **FAMILIES[family])
    reference = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    runner = TorchRunner.load(directory, num_blocks=32, num_slots=0, max_model_len=256)
    expected = reference_logits(reference, TOKENS)
    assert expected.std() > 0.3, "a model whose logits hardly differ proves nothing"
    for chunks in ([100], [33, 1, 40, 1, 25], [1] * 100):
        assert relative_error(logits_of(runner, TOKENS, chunks, range(5, 16)), expected) <= 1e-5

    prompt, greedy = clear_greedy(reference, 100, 64)
    cold = Stream(prompt, [33, 1, 40, 26], range(11))
    run_greedy(runner, [cold], 64)
    # the first 96 tokens are the other's blocks; in one batch with a row of another length
    hit = Stream(prompt, [4], [*range(6), *range(11, 16)], cached=96)
    prompt, other = clear_greedy(reference, 10, 64)
    short = Stream(prompt, [10], range(16, 21))
    run_greedy(runner, [short, hit], 64)
    assert cold.output == greedy
    assert hit.output == greedy
    assert short.output == other
