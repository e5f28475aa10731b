"""What a rank gets of a model, of an adapter and of a step, without any process."""

from __future__ import annotations

import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from inference.adapters.part import part_of
from inference.core.step import Row
from inference.device import rank_device
from inference.errors import ConfigError
from inference.model_config import ModelConfig
from inference.models.lora import SUMMED
from inference.parallel.gathered import Gathered
from inference.parallel.link import Link
from inference.parallel.messages import ClearSlot, Compute, Held, LoadSlot, ReadAdapter
from inference.parallel.rank import Rank
from inference.parallel.rows import pack, unpack
from inference.parallel.shard import WHOLE, Shard
from inference.parallel.summed import Summed
from inference.protocol import SamplingParams
from inference.runner import TorchRunner
from tests.inference.runs import Stream, run_greedy
from tests.inference.test_adapter_kinds import KINDS, save_adapter
from tests.inference.tiny_model import build_tiny_model


class Sums:
    """Ranks in one thread: what each would have given to the sum."""

    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        self.given: list[torch.Tensor] = []

    def sum(self, tensor: torch.Tensor) -> None:
        self.given.append(tensor.clone())

    def gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        self.given.append(tensor.clone())
        return []


@pytest.mark.parametrize(
    ("change", "size", "named"),
    [
        ({}, 3, "--tensor-parallel 3 does not divide the model's num_attention_heads of 4"),
        ({}, 4, "--tensor-parallel 4 does not divide the model's num_key_value_heads of 2"),
        ({"intermediate_size": 113}, 2, "--tensor-parallel 2 does not divide the model's intermediate_size of 113"),
    ],
)
def test_a_number_that_does_not_divide_is_refused_by_name(
    tiny_model_dir: Path, change: dict[str, int], size: int, named: str
) -> None:
    config = replace(ModelConfig.load(tiny_model_dir), **change)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=named):
        Shard(0, size).config(config)


def test_the_parts_of_every_weight_are_the_whole_once(tmp_path: Path) -> None:
    config = ModelConfig.load(build_tiny_model(tmp_path / "tiny", attention_bias=True, mlp_bias=True))
    shards = [Shard(rank, 2) for rank in range(2)]
    cut = 0
    for name, shape in config.tensor_shapes().items():
        whole = torch.arange(torch.Size(shape).numel()).view(shape)
        parts = [shard.cut(whole, shard.config(config).tensor_shapes()[name]) for shard in shards]
        if torch.equal(parts[0], whole):
            assert torch.equal(parts[1], whole)
            assert "norm" in name or "embed" in name or name.endswith(("o_proj.bias", "down_proj.bias"))
            continue
        cut += 1
        dimension = 1 if "o_proj" in name or "down_proj" in name else 0
        assert torch.equal(torch.cat(parts, dimension), whole), name
    assert cut == 2 * (7 + 5)  # seven weights of each layer, and the biases of those that lose outputs
    assert WHOLE.config(config) == config


def test_a_rank_holds_its_part_and_no_more(tmp_path: Path) -> None:
    model = build_tiny_model(tmp_path / "tiny", attention_bias=True, mlp_bias=True, tie_word_embeddings=False)
    vocabulary = ModelConfig.load(model).vocab_size
    for rank in range(2):
        runner = TorchRunner.load(
            model, num_blocks=8, num_slots=0, max_model_len=64, device="cpu", peers=Sums(Shard(rank, 2))
        )
        head = runner._decoder._head
        assert isinstance(head, Gathered)
        assert (head.width, head.part.linear.out_features) == (vocabulary, -(-vocabulary // 2))
        assert runner._attention._keys.shape[2:] == (1, 24)  # type: ignore[attr-defined] # 2 KV heads of 24 in all
        for layer in runner._decoder._layers:
            assert isinstance(layer.o, Summed)
            assert isinstance(layer.down, Summed)
            shapes = [
                (linear.linear.out_features, linear.linear.in_features)  # type: ignore[union-attr]
                for linear in (layer.qkv, layer.o.part, layer.gate_up, layer.down.part)
            ]
            assert shapes == [((2 + 1 + 1) * 24, 64), (64, 2 * 24), (112, 64), (64, 56)]


@pytest.mark.parametrize("kind", ["dora", "some linears", "embedding, head and linears", "dora, head, rank-stabilised"])
def test_the_parts_of_an_adapter_are_the_whole_once(tiny_model_dir: Path, tmp_path: Path, kind: str) -> None:
    runner = TorchRunner.load(tiny_model_dir, num_blocks=1, num_slots=1, max_model_len=16)
    whole = runner.read_adapter(save_adapter(tiny_model_dir, tmp_path / "a", 0, KINDS[kind]))
    config = ModelConfig.load(tiny_model_dir)
    parts = [part_of(whole, config, Shard(rank, 2)) for rank in range(2)]
    assert part_of(whole, config, WHOLE) is whole
    for part in parts:
        assert (part.head is None, part.head_gain is None) == (whole.head is None, whole.head_gain is None)
    if whole.head is not None:
        found = [part.head.b[0] for part in parts if part.head is not None]
        assert torch.equal(torch.cat([b for b in found if b is not None])[: config.vocab_size], whole.head.b[0])
        assert all(part.head is not None and part.head.a == whole.head.a for part in parts)
    if whole.head_gain is not None:
        gains = [part.head_gain for part in parts if part.head_gain is not None]
        assert torch.equal(torch.cat(gains)[: config.vocab_size], whole.head_gain)
    assert all(part.embedding is whole.embedding for part in parts)
    for index, layer in enumerate(whole.layers):
        for name, weights in layer.sites.items():
            cut, kept = ("a", "b") if name in SUMMED else ("b", "a")
            for slice_ in range(len(weights.scaling)):
                own = getattr(weights, cut)[slice_]
                found = [getattr(part.layers[index].sites[name], cut)[slice_] for part in parts]
                assert (own is None) == (found[0] is None) == (found[1] is None)
                if own is not None:
                    assert torch.equal(torch.cat(found, 1 if name in SUMMED else 0), own)
                    for part in parts:
                        assert torch.equal(
                            getattr(part.layers[index].sites[name], kept)[slice_], getattr(weights, kept)[slice_]
                        )
        for name, gain in layer.gains.items():
            found = [part.layers[index].gains[name] for part in parts]
            if name in SUMMED:
                assert all(torch.equal(part, gain) for part in found)
            else:
                assert sorted(torch.cat(found).tolist()) == sorted(gain.tolist())
    held = [part.held_bytes for part in parts]
    assert max(held) < whole.held_bytes <= sum(held)


def test_rows_travel_whole_and_without_what_is_only_sampled() -> None:
    rows = [
        Row([7, 8, 9], 14, [3, 5, 6, 7, 2], slot=4, params=SamplingParams(max_tokens=3), prompt=[1] * 17),
        Row([2**17], 0, [0], slot=-1),
        Row(list(range(33)), 0, list(range(9, 60)), slot=0),
    ]
    found = unpack(pack(rows, 16))
    assert found == [
        Row([7, 8, 9], 14, [3, 5], slot=4),
        Row([2**17], 0, [0], slot=-1),
        Row(list(range(33)), 0, [9, 10, 11], slot=0),
    ]
    assert unpack(pack([], 16)) == []


def test_a_rank_reads_loads_forgets_and_answers(tiny_model_dir: Path, tmp_path: Path) -> None:
    """What the process does with each message, here on a runner of a model's whole."""
    good = save_adapter(tiny_model_dir, tmp_path / "good", 0, KINDS["all linears"])
    runner = TorchRunner.load(tiny_model_dir, num_blocks=32, num_slots=2, max_model_len=128)
    ours, theirs = socket.socketpair()
    rank, lead = Rank(runner, Link(theirs)), Link(ours)
    answers = lead.messages()
    rank.do(ReadAdapter(4, str(good)))
    held = next(answers)
    assert isinstance(held, Held)
    assert (held.number, held.error) == (4, None)
    assert held.num_bytes == runner.read_adapter(good).held_bytes
    (tmp_path / "bad").mkdir()
    rank.do(ReadAdapter(5, str(tmp_path / "bad")))
    refused = next(answers)
    assert isinstance(refused, Held)
    assert (refused.number, refused.field, refused.invalid) == (5, "adapter_config.json", True)

    rank.do(LoadSlot(1, 4))
    prompt = list(range(10, 40))
    (loaded,) = streams = [Stream(prompt, [30], range(4), slot=1)]
    run_greedy(runner, streams, 8)
    rank.do(ClearSlot(1))
    (cleared,) = streams = [Stream(prompt, [30], range(4), slot=1)]
    run_greedy(runner, streams, 8)
    assert cleared.output != loaded.output

    with torch.inference_mode():
        rank.do(Compute(pack([Row([5, 6], 0, [9], slot=-1)], 16), [4]))
    with pytest.raises(KeyError):
        rank.do(LoadSlot(0, 4))
    with pytest.raises(ValueError, match="rank 0 said Held"):
        rank.do(held)
    lead.close()


def test_where_each_rank_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert rank_device("cpu", 1, 2) == "cpu"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert rank_device("auto", 1, 2) == "cpu"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [rank_device(device, 1, 2) for device in ("auto", "cuda")] == ["cuda:1", "cuda:1"]
    assert rank_device("cuda:1", 0, 1) == "cuda:1"
    with pytest.raises(ConfigError, match="--tensor-parallel 4: torch sees 2 CUDA devices"):
        rank_device("auto", 0, 4)
    with pytest.raises(ConfigError, match="--device cuda:1 is one device"):
        rank_device("cuda:1", 0, 2)


def test_the_sum_of_all_ranks_is_the_whole(tiny_model_dir: Path) -> None:
    """One layer's o, by hand: residual and bias come in once."""
    whole = TorchRunner.load(tiny_model_dir, num_blocks=1, num_slots=1, max_model_len=16, device="cpu")
    x, residual = torch.randn(5, 96), torch.randn(5, 64)
    expected = whole._decoder._layers[0].o.add(x, residual, None)
    total = torch.zeros(5, 64)
    for rank in range(2):
        peers: Any = Sums(Shard(rank, 2))
        part = TorchRunner.load(tiny_model_dir, num_blocks=1, num_slots=1, max_model_len=16, device="cpu", peers=peers)
        part._decoder._layers[0].o.add(x[:, rank * 48 : rank * 48 + 48].contiguous(), residual, None)
        total += peers.given[0]
    assert torch.allclose(total, expected, rtol=1e-5, atol=1e-5)


def test_one_process_has_none_of_it(tiny_model_dir: Path) -> None:
    """Nothing of torch.distributed is set up, nothing that would is imported, and no process is started."""
    program = """
import os, sys
from contextlib import ExitStack
from pathlib import Path
from inference.config import WorkerConfig
from inference.core.process import load

place = Path(sys.argv[1])
config = WorkerConfig(model=place, adapter_store=place, grant_key=place, max_model_len=64, device="cpu")
before = set(sys.modules)
load(config, ExitStack())
import torch.distributed
assert not torch.distributed.is_initialized()
found = sorted(name for name in set(sys.modules) - before if name.startswith("inference.parallel."))
print(found, [Path(f"/proc/self/task/{os.getpid()}/children").read_text()])
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(tiny_model_dir)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    light = [f"inference.parallel.{name}" for name in ("gathered", "peers", "shard", "summed")]
    assert done.stdout.strip() == f"{light} ['']"
