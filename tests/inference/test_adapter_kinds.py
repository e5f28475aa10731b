"""Every kind of adapter that is accepted, against PEFT on the same model: alone, and mixed in one batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM

from inference.runner import TorchRunner
from tests.inference.runs import Stream, clear_greedy, logits_of, reference_logits, relative_error, run_greedy
from tests.inference.tiny_model import build_tiny_model

LLAMA: dict[str, object] = {}
QWEN2 = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "head_dim": 16,
    "use_sliding_window": False,
    "tie_word_embeddings": False,
}
LLAMA_BIASED = {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": False}
BASES: dict[str, dict[str, object]] = {"tied llama": LLAMA, "untied qwen2": QWEN2, "llama with biases": LLAMA_BIASED}

KINDS: dict[str, dict[str, Any]] = {
    "all linears": {"target_modules": "all-linear", "r": 6, "lora_alpha": 9},
    "some linears": {"target_modules": ["q_proj", "v_proj", "down_proj"], "r": 3},
    "rank-stabilised": {"target_modules": "all-linear", "r": 16, "lora_alpha": 4, "use_rslora": True},
    "embedding": {"target_modules": ["embed_tokens"], "r": 5},
    "head": {"target_modules": ["lm_head"], "r": 5},
    "embedding, head and linears": {"target_modules": ["embed_tokens", "lm_head", "k_proj", "o_proj"], "r": 4},
    "patterns": {
        "target_modules": ["q_proj", "v_proj", "up_proj", "embed_tokens"],
        "r": 4,
        "rank_pattern": {"v_proj": 2, "embed_tokens": 7},
        "alpha_pattern": {"up_proj": 3, "model.layers.0.self_attn.q_proj": 5},
    },
    "one layer": {"target_modules": ["q_proj", "o_proj"], "layers_to_transform": [1], "layers_pattern": "layers"},
    "exclusions": {"target_modules": "all-linear", "exclude_modules": ["k_proj", "model.layers.0.mlp.down_proj"]},
    "dora": {"target_modules": "all-linear", "r": 4, "use_dora": True},
    "dora, some linears": {"target_modules": ["v_proj", "o_proj", "down_proj"], "r": 4, "use_dora": True},
    "dora, head, rank-stabilised": {
        "target_modules": ["lm_head", "gate_proj", "down_proj"],
        "r": 4,
        "use_dora": True,
        "use_rslora": True,
        "lora_alpha": 2,
    },
}
TOKENS = torch.randint(3, 300, (60,), generator=torch.Generator().manual_seed(1)).tolist()


def save_adapter(model_dir: Path, out: Path, seed: int, options: dict[str, Any]) -> Path:
    """What PEFT itself writes for a model whose adapter does something."""
    torch.manual_seed(seed)
    base = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    model = get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", init_lora_weights=False, **options))
    for name, parameter in model.named_parameters():
        if "lora_embedding" in name:
            torch.nn.init.normal_(parameter, std=0.5)
        elif "lora_magnitude" in name:
            with torch.no_grad():
                parameter.mul_(torch.empty_like(parameter).uniform_(0.6, 1.4))
        elif "lora_" in name:
            torch.nn.init.normal_(parameter, std=0.15)
    model.save_pretrained(str(out))
    return out


def with_adapter(model_dir: Path, adapter: Path | None) -> Any:
    base = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    return base.eval() if adapter is None else PeftModel.from_pretrained(base, str(adapter)).eval()


@pytest.mark.parametrize("base", BASES)
def test_each_kind_equals_peft_alone_and_mixed(base: str, tmp_path: Path) -> None:
    model_dir = build_tiny_model(tmp_path / "tiny", **BASES[base])
    runner = TorchRunner.load(model_dir, num_blocks=160, num_slots=len(KINDS), max_model_len=256)
    plain = reference_logits(with_adapter(model_dir, None), TOKENS)
    expected = {-1: clear_greedy(with_adapter(model_dir, None), 60, 64)}
    for slot, (kind, options) in enumerate(KINDS.items()):
        adapter = save_adapter(model_dir, tmp_path / str(slot), slot, options)
        runner.load_adapter(slot, runner.read_adapter(adapter))
        reference = with_adapter(model_dir, adapter)
        theirs = reference_logits(reference, TOKENS)
        assert relative_error(theirs, plain) > 0.02, f"{kind}: an adapter that does nothing proves nothing"
        for chunks in ([60], [37, 1, 22]):
            assert relative_error(logits_of(runner, TOKENS, chunks, range(8), slot), theirs) <= 1e-5, kind
        expected[slot] = clear_greedy(reference, 60, 64)
    assert relative_error(logits_of(runner, TOKENS, [60], range(8)), plain) <= 1e-5

    streams = [
        Stream(prompt, [20 + slot, 40 - slot], range(9 * (slot + 1), 9 * (slot + 2)), slot=slot)
        for slot, (prompt, _) in expected.items()
    ]
    run_greedy(runner, streams, 64)
    for stream, (_, greedy) in zip(streams, expected.values(), strict=True):
        assert stream.output == greedy, f"slot {stream.slot}"
