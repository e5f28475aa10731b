"""Sixteen requests over four adapters of mixed rank and the base, joining and leaving at different steps: every greedy
token equals what transformers + PEFT generates for that prompt and adapter alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from inference.core.step import BASE_SLOT, Row
from inference.protocol import SamplingParams
from inference.runner import TorchRunner

GREEDY = SamplingParams(temperature=0.0)
TIE = 1e-4
"""Where the reference's two best logits lie closer than this, either is right, and the comparison stops."""
ADAPTERS: dict[str, dict[str, Any]] = {
    "rank 4, q and v": {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"]},
    "rank 8, all": {"r": 8, "lora_alpha": 16, "target_modules": "all-linear"},
    "rank 16, rslora": {"r": 16, "lora_alpha": 16, "use_rslora": True, "target_modules": "all-linear"},
    "rank 17, patterns": {
        "r": 17,
        "lora_alpha": 20,
        "target_modules": ["q_proj", "k_proj", "o_proj", "gate_proj", "down_proj"],
        "rank_pattern": {"layers.3.self_attn.q_proj": 3, "down_proj": 5},
        "alpha_pattern": {"gate_proj": 40},
    },
}
PROMPTS = (
    "What is the capital of France?",
    "Write one sentence about the sea.",
    "List three prime numbers.",
    "Explain what a LoRA adapter is, to a child, in a few words, and then say why one would want many of them at once.",
)


@dataclass
class Request:
    prompt: list[int]
    adapter: str | None
    length: int
    blocks: list[int]
    slot: int
    output: list[int] = field(default_factory=list)
    computed: int = 0

    def row(self, chunk: int) -> Row:
        known = [*self.prompt, *self.output]
        tokens = known[self.computed : self.computed + chunk]
        done = self.computed + len(tokens) == len(known)
        return Row(tokens, self.computed, self.blocks, self.slot, GREEDY if done else None, self.output, self.prompt)


@pytest.mark.slow
def test_sixteen_mixed_requests_equal_transformers_and_peft_alone(smollm_dir: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(smollm_dir)
    base = AutoModelForCausalLM.from_pretrained(smollm_dir, dtype=torch.float32).eval()
    model = make_adapters(base, tmp_path)
    runner = TorchRunner.load(smollm_dir, num_blocks=160, num_slots=5, max_model_len=256)
    for slot, name in enumerate(ADAPTERS, start=1):
        runner.load_adapter(slot, runner.read_adapter(tmp_path / name))
    requests = make_requests(tokenizer)
    serve(runner, requests)

    compared, ties = 0, 0
    for request in requests:
        assert len(request.output) == request.length
        if request.adapter is not None:
            model.set_adapter(request.adapter)
        logits = reference_logits(model, request)
        for index, token in enumerate(request.output):
            best = logits[index].topk(2)
            if float(best.values[0] - best.values[1]) < TIE:
                ties += 1
                break
            assert token == int(best.indices[0]), f"{request.adapter}: token {index} of {request.prompt}"
            compared += 1
    said = {tuple(request.prompt): set[tuple[int, ...]]() for request in requests}
    for request in requests:
        said[tuple(request.prompt)].add(tuple(request.output[:32]))
    changed = sum(len(outputs) > 1 for outputs in said.values())
    assert changed == len(PROMPTS), "the adapters change nothing: the comparison would prove nothing"
    print(f"\ncompared {compared} tokens of {len(requests)} requests; the reference was tied {ties} times")
    assert compared >= 0.9 * sum(request.length for request in requests)


def reference_logits(model: Any, request: Request) -> torch.Tensor:
    """Teacher-forced: the logits behind each token, given the tokens before it.

    By induction this is the reference's own greedy generation: as long as every token equals its arg-max, the context
    is the one that it would have generated itself.
    """
    ids = torch.tensor([[*request.prompt, *request.output]])
    with torch.inference_mode():
        if request.adapter is None:
            with model.disable_adapter():
                logits = model(ids).logits[0]
        else:
            logits = model(ids).logits[0]
    return logits[len(request.prompt) - 1 : -1]


def serve(runner: TorchRunner, requests: list[Request]) -> None:
    """One joins every second step, prompts come in chunks of at most 24, and each leaves when it is done."""
    waiting, running, step = list(requests), [], 0
    most = 0
    while waiting or running:
        if waiting and step % 2 == 0:
            running.append(waiting.pop(0))
        # a different order each step: nothing may depend on where in the batch a row lies
        running = running[1:] + running[:1]
        rows = [request.row(24) for request in running]
        tokens = runner.run(rows)
        for request, row, token in zip(running, rows, tokens, strict=True):
            request.computed += len(row.tokens)
            if row.params is not None:
                assert token is not None
                request.output.append(token)
        most = max(most, len(running))
        running = [request for request in running if len(request.output) < request.length]
        step += 1
    assert most == len(requests), "all of them have to be in flight at once"


def make_requests(tokenizer: Any) -> list[Request]:
    names = [*ADAPTERS, None]
    requests = []
    for index in range(16):
        choice = index % len(names)
        adapter = names[choice]
        slot = BASE_SLOT if adapter is None else choice + 1
        # scattered blocks, none shared: 10 blocks hold 160 positions
        blocks = [index + 16 * block for block in reversed(range(10))]
        prompt = encode(tokenizer, PROMPTS[(index // len(names) + index) % len(PROMPTS)])
        requests.append(Request(prompt, adapter, 64 - 2 * index, blocks, slot))
    return requests


def encode(tokenizer: Any, text: str) -> list[int]:
    messages = [{"role": "user", "content": text}]
    return list(tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)["input_ids"])


def make_adapters(base: Any, out: Path) -> Any:
    """Random adapters, strong enough to change what is said; saved by PEFT itself."""
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(0)  # PEFT draws A
    model: Any = None
    for seed, (name, settings) in enumerate(ADAPTERS.items()):
        config = LoraConfig(task_type="CAUSAL_LM", init_lora_weights=True, **settings)
        if model is None:
            model = get_peft_model(base, config, adapter_name=name)
        else:
            model.add_adapter(name, config)
        generator = torch.Generator().manual_seed(seed)
        for parameter, tensor in model.named_parameters():
            if f".lora_B.{name}." in parameter:
                values = tensor.detach()
                values.copy_(torch.randn(tensor.shape, generator=generator) * 0.08)
    model.eval()
    model.save_pretrained(str(out))  # each adapter into a directory of its name
    for name in ADAPTERS:
        for path in (out / name).iterdir():
            if path.name not in {"adapter_config.json", "adapter_model.safetensors"}:
                path.unlink()
    return model
