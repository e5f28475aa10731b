"""The compiled norms, gate and rotation against their specification in torch; both against float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from inference.model_config import ModelConfig
from inference.models.pointwise import CompiledPointwise, Norms, Pointwise, TorchPointwise
from inference.models.rope import Rope

CPU = torch.device("cpu")
TOKENS = [1, 2, 16, 17, 300]

pytestmark = [
    pytest.mark.skipif(not CompiledPointwise.supports(CPU, torch.float32), reason="made for AVX-512"),
    pytest.mark.usefixtures("threads"),
]


def config(heads: int, kv_heads: int, dim: int) -> ModelConfig:
    return ModelConfig.from_json(
        {
            "architectures": ["Qwen3ForCausalLM"],
            "vocab_size": 10,
            "hidden_size": 64,
            "intermediate_size": 64,
            "num_hidden_layers": 1,
            "num_attention_heads": heads,
            "num_key_value_heads": kv_heads,
            "head_dim": dim,
            "max_position_embeddings": 1000,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
        }
    )


def both(heads: int = 4, kv_heads: int = 2, dim: int = 16) -> tuple[Rope, Pointwise, Pointwise]:
    made = config(heads, kv_heads, dim)
    rope = Rope(made, 1000, device=CPU, dtype=torch.float32)
    return rope, TorchPointwise(made, rope), CompiledPointwise(made)


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found.double(), expected.double(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("width", [1, 7, 64, 576])
def test_norm(tokens: int, width: int) -> None:
    torch.manual_seed(0)
    _, plain, compiled = both()
    x, weight = 5 * torch.randn(tokens, width), torch.randn(width)
    exact = x.double() / (x.double().pow(2).mean(1, keepdim=True) + 1e-5).sqrt() * weight
    close(plain.rms_norm(x, weight), exact)
    close(compiled.rms_norm(x, weight), exact)
    wide = torch.cat([x, torch.full((tokens, 3), float("nan"))], dim=1)
    assert torch.equal(compiled.rms_norm(wide[:, :width], weight), compiled.rms_norm(x, weight))


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("width", [1, 7, 64, 1536])
def test_gate(tokens: int, width: int) -> None:
    torch.manual_seed(0)
    _, plain, compiled = both()
    gate_up = 10 * torch.randn(tokens, 2 * width)
    gate, up = gate_up.double().chunk(2, dim=1)
    close(compiled.gate(gate_up), gate * gate.sigmoid() * up)
    close(plain.gate(gate_up), gate * gate.sigmoid() * up)


def test_gate_far_out() -> None:
    _, plain, compiled = both()
    gate = torch.tensor([-1e9, -200.0, -88.0, -0.0, 0.0, 88.0, 200.0, 1e9, float("nan")])
    gate_up = torch.cat([gate, torch.ones(len(gate))])[None]
    found = compiled.gate(gate_up.clone())
    torch.testing.assert_close(found, plain.gate(gate_up), rtol=1e-5, atol=1e-28, equal_nan=True)


@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("shape", [(4, 2, 16), (9, 3, 64), (1, 1, 2), (6, 1, 80)])
def test_heads(shape: tuple[int, int, int], tokens: int, normed: bool) -> None:
    torch.manual_seed(0)
    heads, kv_heads, dim = shape
    rope, plain, compiled = both(*shape)
    qkv = torch.randn(tokens, (heads + 2 * kv_heads) * dim)
    norms: Norms | None = (torch.randn(dim), torch.randn(dim)) if normed else None
    cos, sin = rope.at(torch.randint(0, 1000, (tokens,)))
    expected = plain.heads(qkv.clone(), norms, cos, sin)
    found = compiled.heads(qkv.clone(), norms, cos, sin)
    for one, other in zip(found, expected, strict=True):
        assert one.shape == other.shape
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_a_tokens_bits_depend_on_that_token_alone() -> None:
    torch.manual_seed(0)
    rope, _, compiled = both()
    x, weight, gate_up, qkv = torch.randn(300, 40), torch.randn(40), torch.randn(300, 80), torch.randn(300, 128)
    cos, sin = rope.at(torch.arange(300))
    norm, gate, heads = (
        compiled.rms_norm(x, weight),
        compiled.gate(gate_up),
        torch.cat(compiled.heads(qkv.clone(), None, cos, sin), dim=1),
    )
    for start, stop in ((0, 1), (5, 40), (299, 300)):
        own = slice(start, stop)
        spoilt = [torch.full_like(part, float("nan")) for part in (x, gate_up, qkv)]
        for part, whole in zip(spoilt, (x, gate_up, qkv), strict=True):
            part[own] = whole[own]
        assert torch.equal(compiled.rms_norm(spoilt[0], weight)[own], norm[own])
        assert torch.equal(compiled.gate(spoilt[1])[own], gate[own])
        assert torch.equal(torch.cat(compiled.heads(spoilt[2], None, cos, sin), dim=1)[own], heads[own])
        assert torch.equal(compiled.rms_norm(x[own].contiguous(), weight), norm[own])
