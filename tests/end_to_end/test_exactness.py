"""Sixteen requests over four adapters of mixed rank and the base, in flight together: every greedy token equals what
transformers + PEFT generates for that prompt and adapter alone. Once through the runner, joining and leaving at
different steps; once through a real worker process, over HTTP."""

from __future__ import annotations

import asyncio
import shutil
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import jwt
import pytest
import torch
from django.conf import settings

from inference.adapter_format import content_digest, store_path
from inference.client import WorkerClient
from inference.core.step import BASE_SLOT, Row
from inference.model_store import fingerprint_of
from inference.protocol import GRANT_ALGORITHM, Grant, SamplingParams
from inference.runner import TorchRunner
from tests.conftest import GrantKeys, WorkerProcess

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


@dataclass
class Reference:
    """:ivar directories: adapter → the PEFT directory that it was saved to."""

    model: Any
    tokenizer: Any
    directories: dict[str, Path]


@pytest.fixture(scope="module")
def reference(smollm_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Reference:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    out = tmp_path_factory.mktemp("adapters")
    base = AutoModelForCausalLM.from_pretrained(smollm_dir, dtype=torch.float32).eval()
    model = make_adapters(base, out)
    return Reference(model, AutoTokenizer.from_pretrained(smollm_dir), {name: out / name for name in ADAPTERS})


@pytest.mark.slow
def test_sixteen_mixed_requests_equal_transformers_and_peft_alone(smollm_dir: Path, reference: Reference) -> None:
    runner = TorchRunner.load(smollm_dir, num_blocks=160, num_slots=5, max_model_len=256)
    for slot, directory in enumerate(reference.directories.values(), start=1):
        runner.load_adapter(slot, runner.read_adapter(directory))
    requests = make_requests(reference.tokenizer)
    serve(runner, requests)
    compare(reference, requests)


@pytest.mark.slow
async def test_the_worker_process_equals_them_too(
    worker: WorkerProcess, grant_keys: GrantKeys, reference: Reference
) -> None:
    digests: dict[str | None, str | None] = {None: None}
    for name, directory in reference.directories.items():
        digest = digests[name] = content_digest(directory)
        shutil.copytree(directory, store_path(settings.ADAPTER_STORE, digest), dirs_exist_ok=True)
    fingerprint = fingerprint_of(worker.model_dir)
    requests = make_requests(reference.tokenizer)
    finished = 0

    async def generate(client: WorkerClient, request: Request) -> int:
        """How many had finished when its first token came."""
        nonlocal finished
        digest = digests[request.adapter]
        body = {
            "model": digest or worker.base,
            "prompt": request.prompt,
            "max_tokens": request.length,
            "temperature": 0,
            "ignore_eos": True,
        }
        before = -1
        async for delta in client.generate(body, sign(grant_keys, fingerprint, digest)):
            if delta.token_ids and before < 0:
                before = finished
            request.output += delta.token_ids
        finished += 1
        return before

    async with aiohttp.ClientSession() as session:
        client = WorkerClient(worker.url, session)
        before = await asyncio.gather(*(generate(client, request) for request in requests))
    assert set(before) == {0}, "all of them have to be in flight at once"
    compare(reference, requests)


def sign(keys: GrantKeys, base: str, adapter: str | None) -> str:
    grant = Grant(
        request_id=str(uuid.uuid4()),
        tenant="acme",
        namespace="acme",
        base=base,
        adapter=adapter,
        max_input=1024,
        max_output=1024,
        priority=0,
        weight=1,
        expires_at=int(time.time()) + 300,
    )
    return jwt.encode(grant.claims(), keys.private.read_bytes(), algorithm=GRANT_ALGORITHM)


def compare(reference: Reference, requests: list[Request]) -> None:
    compared, ties = 0, 0
    for request in requests:
        assert len(request.output) == request.length
        if request.adapter is not None:
            reference.model.set_adapter(request.adapter)
        logits = reference_logits(reference.model, request)
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
        results = runner.run(rows)
        for request, row, result in zip(running, rows, results, strict=True):
            request.computed += len(row.tokens)
            if row.params is not None:
                assert result is not None
                request.output += result.tokens
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
    for seed, (name, options) in enumerate(ADAPTERS.items()):
        config = LoraConfig(task_type="CAUSAL_LM", init_lora_weights=True, **options)
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
