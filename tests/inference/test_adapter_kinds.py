"""Every kind of adapter that is accepted, against PEFT on the same model: alone, and mixed in one batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from inference.adapters.host import HostAdapter, HostLayer
from inference.errors import AdapterInvalid
from inference.models.lora import SITES
from inference.runner import TorchRunner
from sgmv import EmbeddingWeights, SlotWeights
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


def test_what_one_slot_holds_never_reaches_another(tmp_path: Path) -> None:
    """Neither NaN nor infinity in any tensor of a DoRA adapter with embedding and head, to the last bit."""
    model_dir = build_tiny_model(tmp_path / "tiny", **QWEN2)
    runner = TorchRunner.load(model_dir, num_blocks=64, num_slots=4, max_model_len=128)
    kinds = ("embedding, head and linears", "dora", "all linears")
    for slot, kind in enumerate(kinds):
        adapter = save_adapter(model_dir, tmp_path / str(slot), slot, KINDS[kind])
        runner.load_adapter(slot, runner.read_adapter(adapter))
    victims = {slot: list(range(10 + slot, 40 + slot)) for slot in (-1, 0, 1, 2)}

    def outputs(*, poisoned: bool) -> dict[int, list[int]]:
        streams = [
            Stream(prompt, [30], range(8 * (slot + 1), 8 * (slot + 2)), slot=slot) for slot, prompt in victims.items()
        ]
        if poisoned:
            streams.insert(2, Stream(list(range(50, 80)), [30], range(48, 56), slot=3))
        run_greedy(runner, streams, 20)
        return {stream.slot: stream.output for stream in streams if stream.slot != 3}

    head = runner.read_adapter(save_adapter(model_dir, tmp_path / "head", 7, KINDS["dora, head, rank-stabilised"]))
    both = runner.read_adapter(tmp_path / "0")
    dora = runner.read_adapter(tmp_path / "1")
    expected = outputs(poisoned=False)
    for poison in (float("nan"), float("inf")):
        runner.load_adapter(3, _poisoned(dora, both, head, poison))
        assert outputs(poisoned=True) == expected
    runner.clear_slot(3)
    assert outputs(poisoned=False) == expected


def _poisoned(dora: HostAdapter, both: HostAdapter, head: HostAdapter, poison: float) -> HostAdapter:
    """An adapter at every place there is, all of its numbers ``poison``; the check would not let it in."""

    def weights(own: SlotWeights) -> SlotWeights:
        a, b = (tuple(None if t is None else torch.full_like(t, poison) for t in side) for side in (own.a, own.b))
        return SlotWeights(a, b, own.scaling)

    assert both.embedding is not None
    assert both.head is not None
    assert head.head_gain is not None
    layers = tuple(
        HostLayer(
            {name: weights(own) for name, own in layer.sites.items()},
            {name: torch.full_like(gain, poison) for name, gain in layer.gains.items()},
        )
        for layer in dora.layers
    )
    assert all(layer.sites.keys() == layer.gains.keys() == SITES.keys() for layer in layers)
    embedding = EmbeddingWeights(torch.full_like(both.embedding.a, poison), torch.full_like(both.embedding.b, poison))
    return replace(
        dora,
        layers=layers,
        embedding=embedding,
        head=weights(both.head),
        head_gain=torch.full_like(head.head_gain, poison),
    )


def rewrite(directory: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    path = directory / "adapter_model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


def test_copies_of_the_base_are_compared_and_left_out(tmp_path: Path) -> None:
    model_dir = build_tiny_model(tmp_path / "tiny")
    runner = TorchRunner.load(model_dir, num_blocks=4, num_slots=1, max_model_len=64)
    adapter = save_adapter(model_dir, tmp_path / "a", 0, KINDS["embedding, head and linears"])
    copies = [name for name in load_file(adapter / "adapter_model.safetensors") if "base_layer" in name]
    assert len(copies) == 2
    held = runner.read_adapter(adapter).num_bytes
    rewrite(adapter, lambda tensors: tensors.update({name: tensors[name].bfloat16() for name in copies}))
    assert runner.read_adapter(adapter).num_bytes == held
    rewrite(adapter, lambda tensors: tensors[copies[1]].add_(1.0))
    with pytest.raises(AdapterInvalid, match="another base") as caught:
        runner.read_adapter(adapter)
    assert caught.value.field == copies[1]
    rewrite(adapter, lambda tensors: [tensors.pop(name) for name in copies] and None)
    assert runner.read_adapter(adapter).num_bytes == held


def test_a_row_without_length_is_refused(tmp_path: Path) -> None:
    model_dir = build_tiny_model(tmp_path / "tiny")
    runner = TorchRunner.load(model_dir, num_blocks=4, num_slots=1, max_model_len=64)
    adapter = save_adapter(model_dir, tmp_path / "a", 0, {"target_modules": ["q_proj"], "r": 64, "use_dora": True})
    weight = load_file(model_dir / "model.safetensors")["model.layers.1.self_attn.q_proj.weight"]
    prefix = "base_model.model.model.layers.1.self_attn.q_proj."

    def vanish(tensors: dict[str, torch.Tensor]) -> None:
        """W + s·B A = 0 in row 3, exactly: A is the identity."""
        tensors[prefix + "lora_A.weight"] = torch.eye(64)
        tensors[prefix + "lora_B.weight"].zero_()[3] = -weight[3] * (64 / 8)

    rewrite(adapter, vanish)
    with pytest.raises(AdapterInvalid, match="no length") as caught:
        runner.read_adapter(adapter)
    assert caught.value.field == prefix + "lora_magnitude_vector"


def test_numbers_that_the_workers_type_cannot_hold_are_refused(tmp_path: Path) -> None:
    model_dir = build_tiny_model(tmp_path / "tiny")
    runner = TorchRunner.load(model_dir, num_blocks=4, num_slots=1, max_model_len=64, dtype="float16")
    adapter = save_adapter(model_dir, tmp_path / "a", 0, KINDS["some linears"])
    runner.read_adapter(adapter)
    name = "base_model.model.model.layers.0.mlp.down_proj.lora_B.weight"
    rewrite(adapter, lambda tensors: tensors[name].fill_(1e5))
    with pytest.raises(AdapterInvalid, match="too large") as caught:
        runner.read_adapter(adapter)
    assert caught.value.field == name
