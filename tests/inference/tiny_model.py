"""A random two-layer decoder with a real tokenizer, small enough to build in a test and odd enough to find mistakes.

Grouped heads (4 over 2), a head dimension that is not hidden/heads, untied or tied head, and weights large enough that
its logits differ visibly from position to position.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from inference.model_config import ModelConfig
from inference.model_store import register

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_TEXT = (
    "The quick brown fox jumps over the lazy dog. The capital of France is Paris.",
    "Ahoy, matey! One request, all the way: two tenants stream from different adapters of one base model.",
    "def add(a, b):\n    return a + b\n\nprint(add(1, 2))  # 3",
    "Größe, naïve, façade, 東京, Привет, emoji 🏴‍☠️ and 👩‍🚀 test the byte level.",
)


def build_tiny_model(out: Path, *, seed: int = 0, **overrides: object) -> Path:
    """Write a registered model store directory at ``out``; ``overrides`` replace keys of ``config.json``.

    :returns: ``out``.
    """
    source = out.parent / f".{out.name}-source"
    source.mkdir(parents=True)
    tokenizer = _tokenizer()
    config = _config(tokenizer.get_vocab_size()) | overrides
    (source / "config.json").write_text(json.dumps(config))
    (source / "generation_config.json").write_text(json.dumps({"bos_token_id": 1, "eos_token_id": 2}))
    (source / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    (source / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": SPECIAL[2], "bos_token": SPECIAL[1]})
    )
    tokenizer.save(str(source / "tokenizer.json"))
    save_file(_weights(config, seed), source / "model.safetensors", metadata={"format": "pt"})
    register(source, out)
    return out


def _config(vocab_size: int) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocab_size,
        "hidden_size": 64,
        "intermediate_size": 112,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 24,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10_000.0,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "torch_dtype": "float32",
    }


def _weights(config: dict[str, object], seed: int) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(seed)
    weights = {}
    for name, shape in ModelConfig.from_json(config).tensor_shapes().items():
        values = generator.standard_normal(shape, dtype=np.float32)
        norm = name.endswith("norm.weight")
        weights[name] = 1 + 0.1 * values if norm else values * (1.5 / shape[-1] ** 0.5 if len(shape) > 1 else 0.1)
    return weights


def _tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=384,
        special_tokens=[AddedToken(token, normalized=False, special=True) for token in SPECIAL],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_TEXT, trainer)
    return tokenizer
