"""Where a worker computes: the choice, and that the path for any device leans on nothing that only the CPU has."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import sgmv.ops
from inference.attention import make
from inference.attention.torch_backend import TorchAttention
from inference.core.step import Row
from inference.device import choose
from inference.errors import ConfigError
from inference.models import linear, pointwise
from inference.models.adapted import Adapted
from inference.protocol import SamplingParams
from inference.runner import TorchRunner
from sgmv.torch_site import TorchSite
from tests.inference.runs import Stream, clear_greedy, logits_of, reference_logits, relative_error, run_greedy
from tests.inference.test_adapter_kinds import KINDS, save_adapter, with_adapter
from tests.inference.tiny_model import build_tiny_model


def test_the_choice_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose("auto", "auto") == (torch.device("cpu"), torch.float32)
    assert choose("cpu", "bfloat16") == (torch.device("cpu"), torch.bfloat16)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert choose("auto", "auto") == (torch.device("cuda:0"), torch.bfloat16)
    assert choose("cuda", "auto") == (torch.device("cuda:0"), torch.bfloat16)
    assert choose("cuda:1", "auto") == (torch.device("cuda:1"), torch.bfloat16)
    assert choose("auto", "float32") == (torch.device("cuda:0"), torch.float32)
    assert choose("cpu", "auto") == (torch.device("cpu"), torch.float32)


@pytest.mark.parametrize(
    ("device", "dtype", "named"),
    [
        ("cuda", "auto", "0 CUDA devices"),
        ("cuda:3", "auto", "0 CUDA devices"),
        ("mps", "auto", "cpu and cuda"),
        ("toaster", "auto", "toaster"),
        ("cpu", "int3", "int3"),
    ],
)
def test_what_does_not_exist_is_named(device: str, dtype: str, named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(ConfigError, match=named):
        choose(device, dtype)


@pytest.fixture
def generic(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything that is chosen for the CPU is out of reach: what is left is what another device gets."""
    monkeypatch.setitem(sgmv.ops._BACKENDS, "cpu", TorchSite)
    monkeypatch.setattr(make.PanelAttention, "supports", staticmethod(lambda **_: False))
    monkeypatch.setattr(pointwise.CompiledPointwise, "supports", staticmethod(lambda *_: False))
    monkeypatch.setattr(linear.PanelLinear, "available", staticmethod(lambda: False))
    monkeypatch.setattr(linear.PackedLinear, "available", staticmethod(lambda: False))


MISTRAL = {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 24, "head_dim": 32}


@pytest.mark.usefixtures("generic")
def test_the_path_for_any_device_equals_transformers_and_peft(tmp_path: Path) -> None:
    model_dir = build_tiny_model(tmp_path / "tiny", **MISTRAL)
    runner = TorchRunner.load(model_dir, num_blocks=64, num_slots=4, max_model_len=256, device="cpu")
    assert isinstance(runner._attention, TorchAttention)
    assert isinstance(runner._decoder.sites.head.lora, TorchSite)
    o = runner._decoder._layers[0].o
    assert isinstance(o, Adapted)
    assert isinstance(o.linear, linear.DenseLinear)
    tokens = list(range(20, 80))
    streams, expected = [], []
    for slot, kind in enumerate(("all linears", "dora", "embedding, head and linears", "dora, head, rank-stabilised")):
        adapter = save_adapter(model_dir, tmp_path / str(slot), slot, KINDS[kind])
        runner.load_adapter(slot, runner.read_adapter(adapter))
        reference = with_adapter(model_dir, adapter)
        ours = logits_of(runner, tokens, [25, 35], range(8), slot)
        assert relative_error(ours, reference_logits(reference, tokens)) <= 1e-5
        prompt, greedy = clear_greedy(reference, 60, 32)
        streams.append(Stream(prompt, [30, 30], range(8 * (slot + 2), 8 * (slot + 2) + 8), slot=slot))
        expected.append(greedy)
    run_greedy(runner, streams, 32)
    assert [stream.output for stream in streams] == expected


@pytest.mark.usefixtures("generic")
def test_every_tensor_names_its_device(tiny_model_dir: Path, tmp_path: Path) -> None:
    """A tensor made without a device lands on torch's default one: here it has no numbers, and meets none that has."""
    adapters = [
        save_adapter(tiny_model_dir, tmp_path / str(slot), slot, KINDS[kind])
        for slot, kind in enumerate(("dora, head, rank-stabilised", "embedding, head and linears"))
    ]
    torch.set_default_device("meta")
    try:
        runner = TorchRunner.load(tiny_model_dir, num_blocks=32, num_slots=2, max_model_len=128, device="cpu")
        for slot, adapter in enumerate(adapters):
            runner.load_adapter(slot, runner.read_adapter(adapter))
        params = SamplingParams(
            temperature=0.8, top_p=0.9, top_k=20, min_p=0.01, repetition_penalty=1.1, logprobs=2, max_tokens=8
        )
        rows = [Row([5, 6, 7], 0, [slot + 1], slot, params, prompt=[5, 6, 7]) for slot in (-1, 0, 1)]
        for results in (runner.run(rows), runner.run([Row([9], 3, [1], 0, params, [9], [5, 6, 7])])):
            assert all(result is not None and len(result.tokens) == 1 for result in results)
    finally:
        torch.set_default_device(None)
