"""Models over several processes, which sum through gloo: transformers' and PEFT's numbers on any number of ranks."""

from __future__ import annotations

import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from inference.core.step import Row
from inference.errors import ConfigError, InferenceError
from inference.models.int8 import Int8Linear
from inference.parallel import ranks as ranks_module
from inference.parallel.lead import LeadRunner
from inference.parallel.messages import Compute
from inference.protocol import SamplingParams
from inference.runner import TorchRunner
from inference.warm_up import warm_steps
from tests.inference.ranks import led
from tests.inference.runs import Stream, clear_greedy, logits_of, reference_logits, relative_error, run_greedy
from tests.inference.test_adapter_kinds import save_adapter, with_adapter
from tests.inference.tiny_model import build_tiny_model
from tests.stopped import stop

pytestmark = pytest.mark.slow  # each rank is a process that imports torch

WIDE = {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 16}
BIASED = {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": False}
QWEN2 = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "head_dim": 16, "use_sliding_window": False}
QWEN3 = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "use_sliding_window": False}
MODELS: dict[str, tuple[int, dict[str, object]]] = {
    "llama, grouped heads, tied, 2 ranks": (2, {}),
    "qwen2, biases, 2 ranks": (2, QWEN2),
    "qwen3, q/k norm, 3 ranks": (
        3,
        QWEN3
        | {
            "num_attention_heads": 6,
            "num_key_value_heads": 3,
            "head_dim": 16,
            "intermediate_size": 114,
            "vocab_size": 386,
        },
    ),
    "llama, biases everywhere, untied, 4 ranks": (4, WIDE | BIASED),
}
KINDS: dict[str, dict[str, Any]] = {
    "all linears, a small rank": {"target_modules": "all-linear", "r": 3, "lora_alpha": 9},
    "all linears, a large rank": {"target_modules": "all-linear", "r": 16, "lora_alpha": 4, "use_rslora": True},
    "q and v": {"target_modules": ["q_proj", "v_proj"], "r": 5},
    "dora": {"target_modules": "all-linear", "r": 4, "use_dora": True},
    "dora, some linears": {"target_modules": ["v_proj", "o_proj", "down_proj"], "r": 4, "use_dora": True},
    "embedding, head and linears": {"target_modules": ["embed_tokens", "lm_head", "k_proj", "o_proj"], "r": 4},
    "dora, head": {"target_modules": ["lm_head", "gate_proj", "down_proj"], "r": 4, "use_dora": True},
}
TOKENS = torch.randint(3, 300, (100,), generator=torch.Generator().manual_seed(0)).tolist()


def own_bits(runner: TorchRunner) -> list[bool]:
    """Whether rows are computed to the same last bit alone and in one batch."""
    rows = [Row(TOKENS[:17], 0, [0, 1]), Row(TOKENS[5:9], 0, [2]), Row(TOKENS[3:40], 0, [3, 4, 5])]
    with torch.inference_mode():
        alone = [runner.compute([row]) for row in rows]
        together = runner.compute(rows).split([len(row.tokens) for row in rows])
    return [torch.equal(*pair) for pair in zip(alone, together, strict=True)]


@pytest.mark.parametrize("name", MODELS)
def test_a_model_over_ranks_equals_transformers_and_one_rank(name: str, tmp_path: Path) -> None:
    size, overrides = MODELS[name]
    directory = build_tiny_model(tmp_path / "tiny", **overrides)
    reference = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    one = TorchRunner.load(directory, num_blocks=32, num_slots=0, max_model_len=256)
    expected = reference_logits(reference, TOKENS)
    assert expected.std() > 0.3, "a model whose logits hardly differ proves nothing"
    long, short = clear_greedy(reference, 100, 64), clear_greedy(reference, 10, 64)
    with led(directory, size) as lead:
        for chunks in ([100], [33, 1, 40, 1, 25]):
            found = logits_of(lead.own, TOKENS, chunks, range(5, 16))
            assert relative_error(found, expected) <= 1e-5
            assert relative_error(found, logits_of(one, TOKENS, chunks, range(5, 16))) <= 1e-5
        assert all(own_bits(one))
        assert all(own_bits(lead.own))
        cold = Stream(long[0], [33, 1, 40, 26], range(11))
        run_greedy(lead, [cold], 64)
        # the first 96 tokens are the other's blocks; in one batch with a row of another length
        hit = Stream(long[0], [4], [*range(6), *range(11, 16)], cached=96)
        other = Stream(short[0], [10], range(16, 21))
        run_greedy(lead, [other, hit], 64)
    assert cold.output == hit.output == long[1]
    assert other.output == short[1]


@pytest.mark.parametrize(("size", "base"), [(2, {}), (4, WIDE | BIASED)], ids=["2 ranks, tied", "4 ranks, biases"])
def test_adapters_over_ranks_equal_peft_alone_and_mixed(size: int, base: dict[str, object], tmp_path: Path) -> None:
    directory = build_tiny_model(tmp_path / "tiny", **base)
    plain = reference_logits(with_adapter(directory, None), TOKENS[:60])
    expected = {-1: clear_greedy(with_adapter(directory, None), 60, 64)}
    with led(directory, size, slots=len(KINDS)) as lead:
        for slot, (kind, options) in enumerate(KINDS.items()):
            adapter = save_adapter(directory, tmp_path / str(slot), slot, options)
            lead.load_adapter(slot, lead.read_adapter(adapter))
            reference = with_adapter(directory, adapter)
            theirs = reference_logits(reference, TOKENS[:60])
            assert relative_error(theirs, plain) > 0.02, f"{kind}: an adapter that does nothing proves nothing"
            for chunks in ([60], [37, 1, 22]):
                assert relative_error(logits_of(lead.own, TOKENS[:60], chunks, range(8), slot), theirs) <= 1e-5, kind
            expected[slot] = clear_greedy(reference, 60, 64)
        assert relative_error(logits_of(lead.own, TOKENS[:60], [60], range(8)), plain) <= 1e-5
        streams = [
            Stream(prompt, [20 + slot, 40 - slot], range(9 * (slot + 1), 9 * (slot + 2)), slot=slot)
            for slot, (prompt, _) in expected.items()
        ]
        run_greedy(lead, streams, 64)
    for stream, (_, greedy) in zip(streams, expected.values(), strict=True):
        assert stream.output == greedy, f"slot {stream.slot}"


def test_sampling_and_scores_are_rank_0s_and_those_of_one_rank(tiny_model_dir: Path) -> None:
    params = SamplingParams(temperature=0.8, top_p=0.9, seed=3, logprobs=2, repetition_penalty=1.1, max_tokens=8)
    rows = [
        Row(TOKENS[:20], 0, [0, 1], params=params, prompt=TOKENS[:20], seed=3, prompt_logprobs=1),
        Row(TOKENS[:9], 0, [2]),
        Row([*TOKENS[:5], 7, 8], 0, [3], params=SamplingParams(temperature=0.0), prompt=TOKENS[:5], draft=2),
    ]
    one = TorchRunner.load(tiny_model_dir, num_blocks=160, num_slots=0, max_model_len=256)
    with led(tiny_model_dir, 2) as lead:
        warm_steps(lead)  # as on CUDA: it leaves nothing behind
        found, expected = lead.run(rows), one.run(rows)
        assert lead.run([]) == []
    assert found[1] is None is expected[1]
    for ours, theirs in ((found[0], expected[0]), (found[2], expected[2])):
        assert ours is not None
        assert theirs is not None
        assert ours.tokens == theirs.tokens
        assert len(ours.prompt_logprobs) == len(theirs.prompt_logprobs)
        for a, b in zip(ours.prompt_logprobs, theirs.prompt_logprobs, strict=True):
            assert a.logprob == pytest.approx(b.logprob, abs=1e-4)


@pytest.mark.parametrize(("size", "held"), [(2, {"dtype": "bfloat16"}), (3, {"weights": "int8"})])
def test_other_types_come_as_near_as_with_one_rank(size: int, held: dict[str, str], tmp_path: Path) -> None:
    if "weights" in held and not Int8Linear.available():
        pytest.skip("int8 weights need a CPU with AVX-512 VNNI")
    directory = build_tiny_model(
        tmp_path / "tiny", num_attention_heads=6, num_key_value_heads=6, head_dim=16, intermediate_size=114
    )

    def one(**options: Any) -> TorchRunner:
        return TorchRunner.load(directory, num_blocks=32, num_slots=0, max_model_len=256, device="cpu", **options)

    exact = logits_of(one(), TOKENS, [60, 40], range(7))
    alone = logits_of(one(**held), TOKENS, [60, 40], range(7))
    with led(directory, size, **held) as lead:
        found = logits_of(lead.own, TOKENS, [60, 40], range(7))
        assert lead.kv_dtype == f"{one(**held).kv_dtype}-tp{size}"
    assert relative_error(found, exact) <= 1.5 * relative_error(alone, exact)


def children() -> set[str]:
    """Process ids of those that this thread has started."""
    return set(Path(f"/proc/self/task/{threading.get_native_id()}/children").read_text().split())


def test_a_part_that_cannot_be_loaded_stops_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the ranks have met. No process, no group and no folder are left."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    directory = build_tiny_model(tmp_path / "tiny")
    for weights in directory.glob("*.safetensors"):
        weights.write_bytes(weights.read_bytes()[:-100])
    before = torch.get_num_threads(), children()
    with pytest.raises(ConfigError, match="safetensors"), led(directory, 2):
        pass
    assert not torch.distributed.is_initialized()
    assert (torch.get_num_threads(), children()) == before
    assert list((tmp_path / "temporary").iterdir()) == []


def test_the_core_ends_though_its_folder_stays(tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reasons: list[str] = []

    def refuse() -> None:
        raise PermissionError("in use")

    with led(tiny_model_dir, 2, lost=reasons.append) as lead, monkeypatch.context() as patch:
        patch.setattr(lead._folder, "cleanup", refuse)
        with pytest.raises(PermissionError):
            lead._lost("a rank has gone")
    assert reasons == ["a rank has gone"]


def test_a_rank_that_takes_nothing_is_gone(tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Told more than its connection holds while it hangs: sending waits no longer than the sums do."""
    reasons: list[str] = []
    failures: list[str] = []

    def tell(lead: LeadRunner) -> None:
        try:
            lead.ranks.tell(Compute(bytes(1_000_000), []))
        except RuntimeError as error:
            failures.append(str(error))

    monkeypatch.setattr(ranks_module, "patience", lambda config: 1.0)
    with led(tiny_model_dir, 2, lost=reasons.append) as lead:
        stop(lead.ranks.pids[0])
        thread = threading.Thread(target=tell, args=(lead,), daemon=True)
        thread.start()
        thread.join(20)
        assert failures == ["a rank has gone: it does not read what it is told"]
        deadline = time.monotonic() + 5
        while not reasons and time.monotonic() < deadline:
            time.sleep(0.01)
    assert reasons == ["rank 1 has gone"]


def test_a_rank_that_is_gone_fails_the_step(tiny_model_dir: Path) -> None:
    reasons: list[str] = []
    with led(tiny_model_dir, 2, lost=reasons.append) as lead:
        lead.run([Row([5, 6], 0, [0])])
        lead.ranks._processes[0].kill()
        lead.ranks._processes[0].wait()
        with pytest.raises(InferenceError, match="the device failed in a step"):
            lead.run([Row([5, 6], 0, [0])])
        deadline = time.monotonic() + 5
        while len(reasons) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
    assert any(reason.startswith("the device failed in a step") for reason in reasons)
    assert "rank 1 has gone" in reasons
