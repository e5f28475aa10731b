"""fp8 on several ranks: each rounds its own part of a weight or an adapter, by its own scales."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from inference.runner import TorchRunner
from tests.inference.ranks import led
from tests.inference.runs import logits_of
from tests.inference.test_adapter_kinds import KINDS, TOKENS, save_adapter
from tests.inference.tiny_model import build_tiny_model


def cost(found: torch.Tensor, exact: torch.Tensor) -> float:
    return float((found - exact).norm() / exact.norm())


@pytest.mark.slow
def test_two_ranks_come_as_near_as_one(tmp_path: Path) -> None:
    directory = build_tiny_model(tmp_path / "tiny")
    adapter = save_adapter(directory, tmp_path / "a", 0, KINDS["dora"])

    def one(weights: str, adapters: str) -> TorchRunner:
        return TorchRunner.load(
            directory, num_blocks=16, num_slots=1, max_model_len=128, weights=weights, adapters=adapters
        )

    full, less = one("full", "full"), one("fp8", "fp8")
    with led(directory, 2, slots=1, kv_blocks=16, max_model_len=128, weights="fp8", adapter_weights="fp8") as lead:
        assert lead.kv_dtype == "float32-fp8-adapters-fp8-tp2"
        for slot in (-1, 0):
            if slot == 0:
                for runner in (full, less, lead):
                    runner.load_adapter(0, runner.read_adapter(adapter))
            exact = logits_of(full, TOKENS, [40, 20], range(8), slot)
            alone = logits_of(less, TOKENS, [40, 20], range(8), slot)
            found = logits_of(lead.own, TOKENS, [40, 20], range(8), slot)
            assert 0 < cost(found, exact) <= 1.5 * cost(alone, exact)
            assert not torch.equal(found, alone)
