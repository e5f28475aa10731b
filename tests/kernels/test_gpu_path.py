"""The whole path of a GPU in the interpreter: sites, gains, embeddings and attention against transformers and PEFT."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import sgmv.ops
from inference.attention import make
from inference.attention.triton_backend import TritonAttention
from inference.models import linear, pointwise
from inference.runner import TorchRunner
from sgmv.triton_embedding import TritonEmbeddingSite
from sgmv.triton_gain import TritonGain
from sgmv.triton_site import TritonSite
from tests.inference.runs import Stream, clear_greedy, logits_of, reference_logits, relative_error, run_greedy
from tests.inference.test_adapter_kinds import KINDS, save_adapter, with_adapter
from tests.inference.tiny_model import build_tiny_model

SLOTS = ("all linears", "dora", "embedding, head and linears", "dora, head, rank-stabilised")


@pytest.fixture
def gpu_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a GPU gets, on the CPU."""
    monkeypatch.setitem(sgmv.ops._BACKENDS, "cpu", TritonSite)
    monkeypatch.setattr(sgmv.ops, "_gain_kind", lambda *_: TritonGain)
    monkeypatch.setattr(sgmv.ops, "_embedding_kind", lambda *_: TritonEmbeddingSite)
    monkeypatch.setattr(make.PanelAttention, "supports", staticmethod(lambda **_: False))
    monkeypatch.setattr(make, "TorchAttention", TritonAttention)
    monkeypatch.setattr(pointwise.CompiledPointwise, "supports", staticmethod(lambda *_: False))
    monkeypatch.setattr(linear.PanelLinear, "available", staticmethod(lambda: False))
    monkeypatch.setattr(linear.PackedLinear, "available", staticmethod(lambda: False))


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="the kernels are compiled here, and cannot run on the CPU")
@pytest.mark.usefixtures("gpu_kernels")
def test_equals_transformers_and_peft_alone_and_mixed(tmp_path: Path) -> None:
    model_dir = build_tiny_model(tmp_path / "tiny", head_dim=64)
    runner = TorchRunner.load(model_dir, num_blocks=48, num_slots=4, max_model_len=256, device="cpu")
    sites = runner._decoder.sites
    assert isinstance(runner._attention, TritonAttention)
    assert isinstance(sites.embedding, TritonEmbeddingSite)
    assert isinstance(sites.head.lora, TritonSite)
    assert isinstance(sites.head.gain, TritonGain)
    tokens = list(range(20, 60))
    streams, expected = [], []
    for slot, kind in enumerate(SLOTS):
        adapter = save_adapter(model_dir, tmp_path / str(slot), slot, KINDS[kind])
        runner.load_adapter(slot, runner.read_adapter(adapter))
        reference = with_adapter(model_dir, adapter)
        ours = logits_of(runner, tokens, [25, 15], range(8), slot)
        assert relative_error(ours, reference_logits(reference, tokens)) <= 1e-5
        prompt, greedy = clear_greedy(reference, 40, 8)
        streams.append(Stream(prompt, [30, 10], range(8 * (slot + 2), 8 * (slot + 2) + 8), slot=slot))
        expected.append(greedy)
    run_greedy(runner, streams, 8)
    assert [stream.output for stream in streams] == expected
