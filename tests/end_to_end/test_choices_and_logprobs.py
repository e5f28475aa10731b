"""Choices, log-probabilities and echo through openai-python, the gateway and a real worker."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import aiohttp
import openai
import orjson
import pytest
import torch
from openai import AsyncOpenAI
from transformers import AutoModelForCausalLM
from websockets.asyncio.client import connect

from inference.prompt import PromptRenderer
from tests.conftest import WorkerProcess
from tests.end_to_end.conftest import RealHouse
from tests.gateway.house import Actor, Process

pytestmark = pytest.mark.slow

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
TEXT = "The capital of France is"


def client_of(gateway: Process, actor: Actor) -> AsyncOpenAI:
    return AsyncOpenAI(api_key=actor.secret, base_url=f"{gateway.url}/v1", max_retries=0, timeout=120)


@pytest.fixture(scope="module")
def model(worker: WorkerProcess) -> Any:
    return AutoModelForCausalLM.from_pretrained(worker.model_dir, dtype=torch.float32)


@pytest.fixture(scope="module")
def renderer(worker: WorkerProcess) -> PromptRenderer:
    return PromptRenderer.load(worker.model_dir)


def distributions(model: Any, tokens: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        return model(torch.tensor([tokens])).logits[0].double().log_softmax(dim=-1)


async def test_three_choices_are_one_bill(gateway: Process, house: RealHouse, acme: Actor) -> None:
    fields: dict[str, Any] = {"model": house.base.name, "messages": QUESTION, "n": 3, "seed": 5, "max_tokens": 12}
    async with client_of(gateway, acme) as client:
        answer = await client.chat.completions.create(**fields)
        assert [choice.index for choice in answer.choices] == [0, 1, 2]
        texts = [choice.message.content for choice in answer.choices]
        assert len(set(texts)) > 1
        assert answer.usage is not None
        row = house.one_row(acme)
        assert row.prompt_tokens == answer.usage.prompt_tokens
        assert row.completion_tokens == answer.usage.completion_tokens
        assert 12 < answer.usage.completion_tokens <= 36
        alone = await client.chat.completions.create(**{**fields, "n": 1})
        assert alone.choices[0].message.content == texts[0]
        assert alone.usage is not None
        assert alone.usage.prompt_tokens == answer.usage.prompt_tokens

        stream = await client.chat.completions.create(**fields, stream=True, stream_options={"include_usage": True})
        chunks = [chunk async for chunk in stream]
    streamed: dict[int, str] = defaultdict(str)
    for chunk in chunks:
        for choice in chunk.choices:
            streamed[choice.index] += choice.delta.content or ""
    assert [streamed[index] for index in range(3)] == texts
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == answer.usage.completion_tokens
    assert {c.choices[0].index for c in chunks[:-1] if c.choices[0].delta.role} == {0, 1, 2}
    assert sum(c.choices[0].finish_reason is not None for c in chunks[:-1]) == 3


async def test_a_chats_logprobs(
    gateway: Process, house: RealHouse, acme: Actor, model: Any, renderer: PromptRenderer
) -> None:
    fields: dict[str, Any] = {
        "model": house.base.name, "messages": QUESTION, "temperature": 0, "max_tokens": 20, "logprobs": True,
        "top_logprobs": 5,
    }  # fmt: skip
    async with client_of(gateway, acme) as client:
        answer = await client.chat.completions.create(**fields)
        stream = await client.chat.completions.create(**fields, stream=True)
        chunks = [chunk async for chunk in stream]
        without = await client.chat.completions.create(**{**fields, "logprobs": False, "top_logprobs": None})
    (choice,) = answer.choices
    assert choice.finish_reason == "stop"
    assert choice.logprobs is not None
    content = choice.logprobs.content or []
    assert "".join(entry.token for entry in content) == choice.message.content == without.choices[0].message.content
    assert without.choices[0].logprobs is None
    prompt = renderer.encode_chat(QUESTION)
    ids = renderer.encode(choice.message.content or "", add_special_tokens=False)
    expected = distributions(model, prompt + ids)[len(prompt) - 1 :]
    for entry, token, distribution in zip(content, ids, expected, strict=False):
        assert entry.logprob == pytest.approx(float(distribution[token]), abs=1e-4)
        assert bytes(entry.bytes or []).decode() == entry.token
        best = distribution.topk(5).values.tolist()
        assert [other.logprob for other in entry.top_logprobs] == pytest.approx(best, abs=1e-4)
        assert entry.top_logprobs[0].token == entry.token, "greedy"
    streamed = [e for c in chunks if c.choices[0].logprobs for e in c.choices[0].logprobs.content or []]
    assert [entry.token for entry in streamed] == [entry.token for entry in content]
    assert [entry.logprob for entry in streamed] == pytest.approx([entry.logprob for entry in content], abs=1e-4)


@pytest.mark.parametrize("max_tokens", [0, 1])
@pytest.mark.parametrize("as_ids", [False, True])
async def test_echo_scores_a_prompt_as_evaluations_do(
    gateway: Process, house: RealHouse, acme: Actor, model: Any, renderer: PromptRenderer,
    max_tokens: int, as_ids: bool,
) -> None:  # fmt: skip
    ids = renderer.encode(TEXT, add_special_tokens=True)
    async with client_of(gateway, acme) as client:
        answer = await client.completions.create(
            model=house.base.name, prompt=ids if as_ids else TEXT, max_tokens=max_tokens, temperature=0,
            logprobs=1, echo=True,
        )  # fmt: skip
    (choice,) = answer.choices
    assert choice.text == (TEXT + " Paris" if max_tokens else TEXT)
    assert choice.logprobs is not None
    found = choice.logprobs
    assert len(found.tokens or []) == len(found.token_logprobs or []) == len(ids) + max_tokens
    assert (found.token_logprobs or [])[0] is None
    expected = distributions(model, ids)
    for place, token in enumerate(ids[1:]):
        assert (found.token_logprobs or [])[place + 1] == pytest.approx(float(expected[place][token]), abs=1e-4)
        assert max((found.top_logprobs or [])[place + 1].values()) == pytest.approx(
            float(expected[place].max()), abs=1e-4
        )
    starts = [0, *(len(renderer.decode(ids[:count])) for count in range(1, len(ids)))]
    assert (found.text_offset or [])[: len(ids)] == starts
    row = house.one_row(acme)
    assert (row.prompt_tokens, row.completion_tokens, row.outcome) == (len(ids), max_tokens, "completed")


async def test_a_stream_of_echoed_choices(gateway: Process, house: RealHouse, acme: Actor) -> None:
    fields: dict[str, Any] = {
        "model": house.base.name, "prompt": TEXT, "max_tokens": 5, "n": 2, "echo": True, "logprobs": 2, "seed": 2,
    }  # fmt: skip
    async with client_of(gateway, acme) as client:
        whole = await client.completions.create(**fields)
        texts, tokens = defaultdict(str), defaultdict(list)
        async for chunk in await client.completions.create(**fields, stream=True):
            choice = chunk.choices[0]
            texts[choice.index] += choice.text
            tokens[choice.index] += (choice.logprobs.tokens or []) if choice.logprobs else []
    for choice in whole.choices:
        assert choice.text.startswith(TEXT)
        assert choice.text == texts[choice.index]
        assert choice.logprobs is not None
        assert choice.logprobs.tokens == tokens[choice.index]


async def test_prompt_logprobs_beside_a_completion(
    gateway: Process, house: RealHouse, acme: Actor, model: Any, renderer: PromptRenderer
) -> None:
    body = {"model": house.base.name, "prompt": TEXT, "max_tokens": 1, "prompt_logprobs": 2}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{gateway.url}/v1/completions", json=body, headers=acme.headers) as response,
    ):
        (choice,) = (await response.json())["choices"]
    ids = renderer.encode(TEXT, add_special_tokens=True)
    expected = distributions(model, ids)
    assert choice["logprobs"] is None
    assert choice["prompt_logprobs"][0] is None
    for place, token in enumerate(ids[1:]):
        found = choice["prompt_logprobs"][place + 1][str(token)]
        assert found["logprob"] == pytest.approx(float(expected[place][token]), abs=1e-4)


async def test_choices_and_logprobs_over_a_socket(gateway: Process, house: RealHouse, acme: Actor) -> None:
    body = {"model": house.base.name, "messages": QUESTION, "n": 2, "logprobs": True, "max_tokens": 4, "seed": 1}
    url = gateway.url.replace("http", "ws") + "/v1/ws"
    texts, tokens = defaultdict(str), defaultdict(str)
    async with connect(url, additional_headers=acme.headers) as socket:
        await socket.send(orjson.dumps({"type": "request", "id": "a", "body": body}).decode())
        while (frame := orjson.loads(await socket.recv()))["type"] == "chunk":
            for choice in frame["data"]["choices"]:
                texts[choice["index"]] += choice["delta"].get("content", "")
                entries = choice["logprobs"]["content"] if choice["logprobs"] else []
                tokens[choice["index"]] += "".join(entry["token"] for entry in entries)
    assert frame["type"] == "done"
    assert sorted(texts) == [0, 1]
    assert texts == tokens


async def test_limits_count_all_choices(gateway: Process, house: RealHouse) -> None:
    small = house.actor("small", max_output_tokens=30)
    async with client_of(gateway, small) as client:
        fields: dict[str, Any] = {"model": house.base.name, "messages": QUESTION}
        with pytest.raises(openai.BadRequestError) as caught:
            await client.chat.completions.create(**fields, n=4, max_tokens=8)
        assert caught.value.param == "max_tokens"
        assert "30" in caught.value.message
        fits = await client.chat.completions.create(**fields, n=4, max_tokens=7)
        assert len(fits.choices) == 4
        shrunk = await client.chat.completions.create(**fields, n=4)
        assert shrunk.usage is not None
        assert shrunk.usage.completion_tokens <= 28
    assert len(house.ledger(small)) == 2


async def test_a_long_prompt_is_scored_beside_the_event_loops(
    gateway: Process, house: RealHouse, acme: Actor, model: Any
) -> None:
    """Long enough for each process to leave its event loop for it, and for chunked prefill."""
    house.base.context_length = 2048
    house.base.save()
    ids = [100 + (place * place) % 30_000 for place in range(700)]
    async with client_of(gateway, acme) as client:
        answer = await client.completions.create(model=house.base.name, prompt=ids, max_tokens=0, logprobs=8, echo=True)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    found = logprobs.token_logprobs or []
    expected = distributions(model, ids)
    assert len(found) == 700
    wanted = [float(expected[place][token]) for place, token in enumerate(ids[1:])]
    assert found[1:] == pytest.approx(wanted, abs=1e-4)


async def test_prompt_logprobs_beside_a_chat(gateway: Process, house: RealHouse, acme: Actor) -> None:
    """The worker's own fields: what it has to compute it with, and stop tokens."""
    body = {"model": house.base.name, "messages": QUESTION, "max_tokens": 2, "prompt_logprobs": 1}
    body |= {"stop_token_ids": [0], "top_k": -1}
    async with (
        aiohttp.ClientSession() as session,
        session.post(gateway.url + "/v1/chat/completions", json=body, headers=acme.headers) as response,
    ):
        answer = await response.json()
        assert response.status == 200, answer
    assert len(answer["prompt_logprobs"]) == answer["usage"]["prompt_tokens"]
    assert answer["prompt_logprobs"][0] is None
    assert "prompt_logprobs" not in answer["choices"][0]
    assert answer["system_fingerprint"].split("-")[0] == "loraplex"
    assert house.fingerprint[:12] in answer["system_fingerprint"]
